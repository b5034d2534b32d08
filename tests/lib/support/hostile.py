"""Values that break programs, for every way in. `as_json` writes them as a stranger would, not as `json.dumps` can."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from trainmaster.jobspec.model import CRD_PATHS

DEEP, DIGITS = "deep", "5000 digits"
"""Stand for what `json.dumps` cannot write: lists nested 2,000 deep, a number of 5,000 digits."""
HOSTILE: dict[str, Any] = {
    "401 digits": int("9" * 401),
    "5000 digits": DIGITS,
    "2**70": 2**70,
    "-2**70": -(2**70),
    "2**63": 2**63,
    "1.5e308": 1.5e308,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "minus infinity": float("-inf"),
    "lone surrogate": "\ud800",
    "NUL": "a\0b",
    "long text": "x" * 200_000,
    "many items": ["x"] * 5_000,
    "many keys": {f"k{number}": "x" for number in range(2_000)},
    "deep": DEEP,
}
"""Right for no field at all."""
ODD: dict[str, Any] = {
    "null": None, "true": True, "0": 0, "-1": -1, "1.5": 1.5, "-0.0": -0.0, "1e-300": 1e-300, "1e15": 1e15,
    "empty text": "", "superscript digit": "worker-²", "Arabic digits": "٣٤", "digits": "7", "escape": "\x1b[2J\u202e",
    "path": "../../etc/passwd", "empty list": [], "empty object": {}, "list of a list": [[]], "list of null": [None],
    "empty key": {"": ""}, "object of null": {"k": None}, "reversed range": {"min": 2, "max": 1},
}  # fmt: skip
"""Right for some fields: refused, or taken and kept."""
MILLION = ["x"] * 1_000_000


def as_json(value: Any) -> str:
    return json.dumps(value).replace(f'"{DIGITS}"', "9" * 5000).replace(f'"{DEEP}"', "[" * 2000 + "]" * 2000)


def as_text(value: Any) -> str:
    """As a cell of a table, or a parameter of an address, would hold it."""
    return str(value).encode("utf-8", "replace").decode() if isinstance(value, str) else as_json(value)


EXAMPLES: dict[str, Any] = {
    "str": "x",
    "int": 1,
    "float": 1.5,
    "bool": True,
    "float | None": 2.5,
    "tuple[str, ...]": ["x"],
    "dict[str, str]": {"K": "V"},
    "tuple[Peer, ...]": [{"member": "worker-0", "role": "worker", "rank": 0}],
    "Membership | None": {"version": 1, "peers": [], "master_addr": "a", "master_port": 1},
}
"""A good value by type, as a line has it. A new type of field needs one."""


def example(kind: type[Any]) -> dict[str, Any]:
    return {"type": kind.__name__, **{each.name: EXAMPLES[str(each.type)] for each in fields(kind)}}


def training_job(given: dict[str, Any]) -> dict[str, Any]:
    """A TrainingJob with these fields, by their names of `jobspec`."""
    spec: dict[str, Any] = {"template": {"spec": {"containers": [{"name": "main", "image": "x"}]}}}
    for field, value in given.items():
        *parents, key = CRD_PATHS[field].split(".")
        holder = spec
        for parent in parents:
            holder = holder.setdefault(parent, {})
        holder[key] = value
    meta = {"name": "a", "namespace": "b", "uid": "0a1b2c3d", "creationTimestamp": "2023-11-14T22:15:20Z"}
    return {"metadata": meta, "spec": spec}
