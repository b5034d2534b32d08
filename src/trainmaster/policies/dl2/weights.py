"""Weights as a file: a small .npz with arrays, the features they were trained on and how they were made."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmaster.model.errors import InputError
from trainmaster.policies.dl2.features import GLOBAL_FEATURES, JOB_FEATURES, N_ACTION, N_GLOBAL, N_JOB
from trainmaster.policies.dl2.network import ScoringNetwork, WindowNetwork, shapes

FORMAT = "trainmaster-dl2"
VERSION = 1
SHIPPED = Path(__file__).with_name("weights.npz")
_STAMP = (2020, 1, 1, 0, 0, 0)
_REMEDY = "Train with `trainmaster learn dl2`, or leave the option out to use the weights that are shipped."


@dataclass(frozen=True)
class Weights:
    """A network ready to decide, and the record of its training."""

    network: ScoringNetwork | WindowNetwork
    made_by: Mapping[str, Any]


def to_bytes(
    arrays: Mapping[str, npt.NDArray[np.float32]], network: str, window: int, made_by: Mapping[str, Any]
) -> bytes:
    """The file's content; equal weights give equal bytes."""
    about = {
        "format": FORMAT, "version": VERSION, "network": network, "window": window, "made_by": dict(made_by),
        "job_features": list(JOB_FEATURES), "global_features": list(GLOBAL_FEATURES),
    }  # fmt: skip
    out = BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("about.json", _STAMP), json.dumps(about, sort_keys=True, indent=1))
        for name in sorted(arrays):
            body = BytesIO()
            np.save(body, np.ascontiguousarray(arrays[name], np.float32))
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _STAMP), body.getvalue())
    return out.getvalue()


def load(path: Path) -> Weights:
    """Read and check a weights file; anything wrong with it is an `InputError` that says what."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the weights: {error.strerror}", "a weights file", _REMEDY, file=path) from None
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            about = json.loads(archive.read("about.json"))
            names = [name for name in archive.namelist() if name.endswith(".npy")]
            arrays = {
                name[:-4]: np.load(BytesIO(archive.read(name)), allow_pickle=False).astype(np.float32) for name in names
            }
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError, OSError, json.JSONDecodeError):
        raise InputError("this is no weights file of dl2", "an .npz with about.json", _REMEDY, file=path) from None
    return _checked(about, arrays, path)


def _checked(about: Any, arrays: dict[str, npt.NDArray[np.float32]], path: Path) -> Weights:
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise InputError("this is no weights file of dl2", f"format '{FORMAT}'", _REMEDY, file=path)
    if about.get("version") != VERSION:
        raise InputError(f"weights of version {about.get('version')}", f"version {VERSION}", _REMEDY, file=path)
    for key, known in (("job_features", JOB_FEATURES), ("global_features", GLOBAL_FEATURES)):
        if about.get(key) != list(known):
            raise InputError(f"weights trained on other {key.replace('_', ' ')}", ", ".join(known), _REMEDY, file=path)
    kind, window = about.get("network"), int(about.get("window") or 0)
    wanted = _wanted_shapes(kind, window, arrays, path)
    for name, shape in wanted.items():
        if name not in arrays or arrays[name].shape != shape:
            seen = arrays[name].shape if name in arrays else "missing"
            raise InputError(f"weight '{name}' is {seen}", f"shape {shape}", _REMEDY, file=path)
        if not np.isfinite(arrays[name]).all():
            raise InputError(f"weight '{name}' holds numbers that are not finite", "finite numbers", _REMEDY, file=path)
    kept = {name: arrays[name] for name in wanted}
    network = ScoringNetwork(kept) if kind == "shared" else WindowNetwork(kept, window)
    return Weights(network, about.get("made_by", {}))


def _wanted_shapes(
    kind: Any, window: int, arrays: Mapping[str, npt.NDArray[np.float32]], path: Path
) -> dict[str, tuple[int, ...]]:
    def width(name: str) -> int:
        shape = arrays[name].shape if name in arrays else ()
        return int(shape[-1]) if shape else 1

    if kind == "shared":
        return shapes(width("u"), width("v"))
    if kind == "window" and window > 0:
        hidden = width("p")
        return {
            "P": (window * N_JOB + N_GLOBAL, hidden), "p": (hidden,), "Q": (hidden, hidden), "q": (hidden,),
            "R": (hidden, window * N_ACTION + 1), "r": (window * N_ACTION + 1,),
        }  # fmt: skip
    raise InputError(f"weights of a network '{kind}'", "'shared' or 'window'", _REMEDY, file=path)


@lru_cache(maxsize=8)
def load_once(path: str) -> Weights:
    """`load`, remembered: a policy is built many times in a comparison."""
    return load(Path(path) if path else SHIPPED)


def shared_weights(path: Path) -> Mapping[str, npt.NDArray[np.float32]]:
    """The arrays of a file that holds a shared network, from which a training can go on."""
    network = load(path).network
    if not isinstance(network, ScoringNetwork):
        raise InputError("weights of the window network", "those of the shared network", file=path)
    return network.weights
