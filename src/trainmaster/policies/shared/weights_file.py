"""Weights of a learned policy as a file: a small .npz with arrays, the features they were trained on and how they were
made.

Whatever is wrong with a file is an `InputError` that says what, and what to do instead.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainmaster.model.errors import InputError

Arrays = Mapping[str, npt.NDArray[np.float32]]
_ABOUT = "about.json"
_STAMP = (2020, 1, 1, 0, 0, 0)
"""Of every member, so that equal weights give equal bytes."""


@dataclass(frozen=True)
class WeightsFormat:
    """What the weights files of one policy have in common. `features`: by the key under which the file lists them."""

    policy: str
    version: int
    features: Mapping[str, Sequence[str]]

    @property
    def name(self) -> str:
        return f"trainmaster-{self.policy}"

    def to_bytes(self, arrays: Arrays, about: Mapping[str, Any]) -> bytes:
        """The file's content."""
        described = {
            **about,
            "format": self.name,
            "version": self.version,
            **{key: list(names) for key, names in self.features.items()},
        }
        out = BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(zipfile.ZipInfo(_ABOUT, _STAMP), json.dumps(described, sort_keys=True, indent=1))
            for name in sorted(arrays):
                body = BytesIO()
                np.save(body, np.ascontiguousarray(arrays[name], np.float32))
                archive.writestr(zipfile.ZipInfo(f"{name}.npy", _STAMP), body.getvalue())
        return out.getvalue()

    def read(self, path: Path) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.float32]]]:
        """What the file says of itself, and its arrays: of this format, this version and these features."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise self.fault(f"cannot read the weights: {error.strerror}", "a weights file", path) from None
        try:
            with zipfile.ZipFile(BytesIO(data)) as archive:
                about = json.loads(archive.read(_ABOUT))
                arrays = {name[:-4]: _array(archive, name) for name in archive.namelist() if name.endswith(".npy")}
        except (
            zipfile.BadZipFile,
            zlib.error,
            LookupError,
            ValueError,
            TypeError,
            EOFError,
            OSError,
            RuntimeError,
            MemoryError,
        ):
            raise self.fault(f"not a weights file of {self.policy}", f"an .npz with {_ABOUT}", path) from None
        if not isinstance(about, dict) or about.get("format") != self.name:
            raise self.fault(f"not a weights file of {self.policy}", f"format '{self.name}'", path)
        if about.get("version") != self.version:
            raise self.fault(f"weights of version {about.get('version')}", f"version {self.version}", path)
        for key, known in self.features.items():
            if about.get(key) != list(known):
                raise self.fault(f"weights trained on other {key.replace('_', ' ')}", ", ".join(known), path)
        return about, arrays

    def take(
        self, arrays: Arrays, shapes: Mapping[str, tuple[int, ...]], path: Path
    ) -> dict[str, npt.NDArray[np.float32]]:
        """The arrays of these shapes, with finite numbers in them; others are left out."""
        for name, shape in shapes.items():
            if name not in arrays or arrays[name].shape != shape:
                seen = arrays[name].shape if name in arrays else "missing"
                raise self.fault(f"weight '{name}' is {seen}", f"shape {shape}", path)
            if not np.isfinite(arrays[name]).all():
                raise self.fault(f"weight '{name}' holds numbers that are not finite", "finite numbers", path)
        return {name: arrays[name] for name in shapes}

    def fault(self, what: str, expected: str, path: Path) -> InputError:
        remedy = f"Train with `trainmaster learn {self.policy}`, or leave the option out: weights are shipped."
        return InputError(what, expected, remedy, file=path)


def _array(archive: zipfile.ZipFile, name: str) -> npt.NDArray[np.float32]:
    found = np.load(BytesIO(archive.read(name)), allow_pickle=False)
    if found.dtype.kind not in "fiu":
        raise ValueError(f"{name} holds {found.dtype}")
    return found.astype(np.float32)
