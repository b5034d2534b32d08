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
from trainmaster.policies.das.features import JOB_FEATURES, MACHINE_FEATURES, PAIR_FEATURES
from trainmaster.policies.das.gaussian import Kernel
from trainmaster.policies.das.network import VARIANTS, Agents, shapes

FORMAT = "trainmaster-das"
VERSION = 2
"""2: agents see as fitting what may start where it pays; 1 had them wait for whole machines at any price."""
SHIPPED = Path(__file__).with_name("weights.npz")
_STAMP = (2020, 1, 1, 0, 0, 0)
_REMEDY = "Train with `trainmaster learn das`, or leave the option out to use the weights that are shipped."
_FEATURES = {"job_features": JOB_FEATURES, "machine_features": MACHINE_FEATURES, "pair_features": PAIR_FEATURES}


@dataclass(frozen=True)
class Weights:
    """Agents ready to decide, the kernel they were trained with, and the record of their training."""

    agents: Agents
    kernel: Kernel
    made_by: Mapping[str, Any]


def to_bytes(agents: Agents, kernel: Kernel, made_by: Mapping[str, Any]) -> bytes:
    """The file's content; equal weights give equal bytes."""
    about = {
        "format": FORMAT, "version": VERSION, "variant": agents.variant, "heads": agents.heads,
        "kernel": kernel.to_json(), "made_by": dict(made_by),
        **{key: list(names) for key, names in _FEATURES.items()},
    }  # fmt: skip
    out = BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("about.json", _STAMP), json.dumps(about, sort_keys=True, indent=1))
        for name in sorted(agents.weights):
            body = BytesIO()
            np.save(body, np.ascontiguousarray(agents.weights[name], np.float32))
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
            arrays = {
                name[:-4]: np.load(BytesIO(archive.read(name)), allow_pickle=False).astype(np.float32)
                for name in archive.namelist()
                if name.endswith(".npy")
            }
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError, OSError, json.JSONDecodeError):
        raise InputError("this is no weights file of das", "an .npz with about.json", _REMEDY, file=path) from None
    return _checked(about, arrays, path)


def _checked(about: Any, arrays: dict[str, npt.NDArray[np.float32]], path: Path) -> Weights:
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise InputError("this is no weights file of das", f"format '{FORMAT}'", _REMEDY, file=path)
    if about.get("version") != VERSION:
        raise InputError(f"weights of version {about.get('version')}", f"version {VERSION}", _REMEDY, file=path)
    for key, known in _FEATURES.items():
        if about.get(key) != list(known):
            raise InputError(f"weights trained on other {key.replace('_', ' ')}", ", ".join(known), _REMEDY, file=path)
    if about.get("variant") not in VARIANTS:
        raise InputError(f"weights of variant '{about.get('variant')}'", ", ".join(VARIANTS), _REMEDY, file=path)
    width, hidden = (int(arrays[name].size) if name in arrays else 1 for name in ("bj", "p1"))
    heads = about.get("heads")
    if not isinstance(heads, int) or heads < 1 or width % heads:
        raise InputError(f"weights with {heads} heads of a width of {width}", "a divisor of it", _REMEDY, file=path)
    wanted = shapes(width, hidden)
    for name, shape in wanted.items():
        if name not in arrays or arrays[name].shape != shape:
            seen = arrays[name].shape if name in arrays else "missing"
            raise InputError(f"weight '{name}' is {seen}", f"shape {shape}", _REMEDY, file=path)
        if not np.isfinite(arrays[name]).all():
            raise InputError(f"weight '{name}' holds numbers that are not finite", "finite numbers", _REMEDY, file=path)
    agents = Agents({name: arrays[name] for name in wanted}, heads, about["variant"])
    return Weights(agents, _kernel(about.get("kernel"), path), about.get("made_by", {}))


def _kernel(given: Any, path: Path) -> Kernel:
    known = Kernel().to_json()
    if not isinstance(given, dict) or set(given) != set(known):
        raise InputError("the kernel is not described", ", ".join(known), _REMEDY, file=path)
    usable = all(isinstance(value, int | float) and value > 0 for value in given.values())
    if not usable or given["decay"] >= 1 or given["same_kind"] > 1:
        raise InputError(f"a kernel with {given}", "positive numbers, a decay below 1", _REMEDY, file=path)
    return Kernel(**{**given, "history": int(given["history"])})


@lru_cache(maxsize=8)
def load_once(path: str) -> Weights:
    """`load`, remembered: a policy is built many times in a comparison."""
    return load(Path(path) if path else SHIPPED)
