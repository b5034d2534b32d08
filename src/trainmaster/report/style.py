"""One look for every plot: readable in greyscale (line styles, markers, hatches as well as colours)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trainmaster.model.errors import InputError

# Okabe-Ito colours ordered so that neighbours differ in lightness as well as in hue.
_COLOURS = ("#0072B2", "#E69F00", "#000000", "#56B4E9", "#D55E00", "#009E73", "#CC79A7", "#7F7F7F")
_DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 2)),
    (0, (1, 1.2)),
    (0, (6, 2, 1, 2)),
    (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (2, 3)),
    (0, (10, 3, 2, 3)),
)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "ooo", "+++", "---")

_RC: dict[Any, Any] = {
    "figure.figsize": (6.4, 3.8),
    "figure.dpi": 130,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.6,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "trainmaster",  # same bytes for the same plot
    "savefig.bbox": None,
}


@dataclass(frozen=True)
class SeriesLook:
    """How the n-th series of a plot looks, whatever the kind of plot."""

    colour: str
    dashes: Any
    marker: str
    hatch: str

    def line(self) -> dict[str, Any]:
        return {"color": self.colour, "linestyle": self.dashes}

    def bar(self) -> dict[str, Any]:
        return {"facecolor": self.colour, "hatch": self.hatch, "edgecolor": "white", "linewidth": 0.0}


def look(index: int) -> SeriesLook:
    """Beyond eight series colours repeat with the next line style: no two of 64 look the same."""
    turn = index // len(_COLOURS)
    at = index % len(_COLOURS)
    other = (at + turn) % len(_DASHES)
    return SeriesLook(_COLOURS[at], _DASHES[other], _MARKERS[other], _HATCHES[other])


@contextmanager
def house_style() -> Iterator[None]:
    with mpl.rc_context(_RC):
        yield


@contextmanager
def figure(title: str, x: str, y: str, *, size: tuple[float, float] | None = None) -> Iterator[tuple[Figure, Axes]]:
    """A figure in house style with one pair of axes; closed on leaving."""
    with house_style():
        made, axes = plt.subplots(figsize=size) if size else plt.subplots()
        axes.set_title(plain(title))
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        try:
            yield made, axes
        finally:
            plt.close(made)


def plain(text: str) -> str:
    """A name as it is: a dollar sign begins no formula."""
    return text.replace("$", r"\$")


def legend_outside(axes: Axes, title: str | None = None) -> None:
    """To the right of the axes: never over the data."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0, title=title)


def save(made: Figure, path: Path) -> Path:
    """PNG or SVG by suffix, without time stamps."""
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made.savefig(path, metadata=metadata)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror}", "a writable place", file=path) from None
    return path
