"""Jobs, allocations and commands as JSON data and back. Strict: anything else is an `InputError`.

Fields that have their default are left out, keys are sorted, so that equal values give equal bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from itertools import pairwise
from typing import Any

from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.command import Command, Launch, Resize, Stop
from trainmaster.model.errors import InputError
from trainmaster.model.foreign import is_finite, is_text
from trainmaster.model.job import DeadlineKind, Demand, JobId, JobSpec
from trainmaster.model.scaling import Scaling
from trainmaster.model.units import GPU_MILLI

Json = dict[str, Any]
MAX_INT = 2**62


def canonical(data: Any) -> str:
    """Equal data, equal text; numbers that JSON does not have are refused."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


# -- leaves ------------------------------------------------------------------------------------------------


def _refuse(where: str, value: Any, expected: str) -> InputError:
    shown = repr(value)
    return InputError(f"is {shown if len(shown) <= 60 else shown[:57] + '...'}", expected=expected, column=where)


def _text(value: Any, where: str) -> str:
    if not is_text(value):
        raise _refuse(where, value, "text")
    return value


def _whole(low: int, high: int = MAX_INT) -> Callable[[Any, str], int]:
    def read(value: Any, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _refuse(where, value, f"a whole number from {low} to {high}")
        return value

    return read


def _number(low: float) -> Callable[[Any, str], float]:
    def read(value: Any, where: str) -> float:
        if not is_finite(value) or value < low:
            raise _refuse(where, value, f"a finite number, {low:g} or more" if low > -math.inf else "a finite number")
        return float(value)

    return read


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise _refuse(where, value, "true or false")
    return value


def _maybe(read: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    return lambda value, where: None if value is None else read(value, where)


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _refuse(where, value, "a list")
    return value


def _texts(value: Any, where: str) -> tuple[str, ...]:
    return tuple(_text(item, f"{where}[{i}]") for i, item in enumerate(_list(value, where)))


def _object(value: Any, where: str) -> Json:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise _refuse(where, value, "an object")
    return dict(value)


def _speeds(value: Any, where: str) -> dict[str, float]:
    return {name: _number(0.0)(speed, f"{where}.{name}") for name, speed in _object(value, where).items()}


def _read(data: Any, readers: Mapping[str, Callable[[Any, str], Any]], required: tuple[str, ...], where: str) -> Json:
    found = _object(data, where or "value")
    prefix = f"{where}." if where else ""
    for key in found:
        if key not in readers:
            raise InputError("is not known", expected="one of " + ", ".join(sorted(readers)), column=prefix + key)
    for key in required:
        if key not in found:
            raise InputError("is missing", expected=f"'{key}'", column=prefix + key)
    return {key: readers[key](value, prefix + key) for key, value in found.items()}


def _without_defaults(value: Any, encode: Mapping[str, Callable[[Any], Any]]) -> Json:
    out: Json = {}
    for name, default in _defaults(type(value)):
        item = getattr(value, name)
        if default is MISSING or item != default:
            out[name] = encode[name](item) if name in encode else item
    return out


@cache
def _defaults(kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    """Fields with their defaults; those made by a factory are only compared, never handed out."""
    return tuple(
        (field.name, field.default if field.default_factory is MISSING else field.default_factory())
        for field in fields(kind)
    )


# -- jobs --------------------------------------------------------------------------------------------------

_DEMAND = {"gpu_milli": _whole(0), "cpu_milli": _whole(0), "mem_mib": _whole(0)}
_COEFFICIENTS = "abcdefg"


def _demand(value: Any, where: str) -> Demand:
    demand = Demand(**_read(value, _DEMAND, (), where))
    if demand.gpu_milli > GPU_MILLI and demand.gpu_milli % GPU_MILLI:
        raise _refuse(where + ".gpu_milli", demand.gpu_milli, "a fraction of one GPU or whole GPUs")
    return demand


def _points(value: Any, where: str) -> tuple[tuple[int, float], ...]:
    points = []
    for i, pair in enumerate(_list(value, where)):
        at = f"{where}[{i}]"
        if len(_list(pair, at)) != 2:
            raise _refuse(at, pair, "[workers, speed]")
        points.append((_whole(1)(pair[0], at), _number(0.0)(pair[1], at)))
    if any(b[0] <= a[0] for a, b in pairwise(points)):
        raise _refuse(where, value, "rising numbers of workers")
    return tuple(points)


_SCALING = {**dict.fromkeys(_COEFFICIENTS, _number(-math.inf)), "points": _points, "workers_per_server": _number(0.0)}


def _deadline_kind(value: Any, where: str) -> DeadlineKind:
    return DeadlineKind(_whole(0, max(DeadlineKind))(value, where))


_SPEC: dict[str, Callable[[Any, str], Any]] = {
    "id": _text,
    "submit_ms": _whole(-MAX_INT),
    "name": _text,
    "workers_min": _whole(1),
    "workers_max": _whole(1),
    "servers_min": _whole(0),
    "servers_max": _whole(0),
    "worker": _demand,
    "server": _demand,
    "workers_ref": _whole(1),
    "servers_ref": _whole(0),
    "gpu_types": _texts,
    "work_total": _maybe(_number(0.0)),
    "steps_per_s": _speeds,
    "steps_per_s_spread": _speeds,
    "scaling": lambda value, where: Scaling(**_read(value, _SCALING, (), where)),
    "weight": _number(0.0),
    "priority": _whole(-MAX_INT),
    "entity": _text,
    "deadline_ms": _whole(-MAX_INT),
    "deadline_kind": _deadline_kind,
    "utility": _maybe(_object),
    "budget": _maybe(_number(0.0)),
    "gpu_memory_mib": _maybe(_whole(1)),
    "time_s": _maybe(_number(0.0)),
    "model": _text,
    "batch_size": _maybe(_whole(1)),
    "epochs_total": _maybe(_number(0.0)),
    "max_attempts": _whole(1),
    "preemptible": _flag,
    "leased": _flag,
    "node_set": _text,
    "after": _texts,
    "payload": _object,
}


def spec_to_json(spec: JobSpec) -> Json:
    def demand(value: Demand) -> Json:  # whole, because the default differs between worker and server
        return {"gpu_milli": value.gpu_milli, "cpu_milli": value.cpu_milli, "mem_mib": value.mem_mib}

    def scaling(value: Scaling) -> Json:
        return _without_defaults(value, {"points": lambda points: [list(point) for point in points]})

    return _without_defaults(
        spec,
        {
            "worker": demand, "server": demand, "scaling": scaling, "gpu_types": list, "after": list,
            "deadline_kind": int,
            "steps_per_s": dict, "steps_per_s_spread": dict, "utility": _dict_or_none, "payload": dict,
        },
    )  # fmt: skip


def _dict_or_none(value: Mapping[str, Any] | None) -> Json | None:
    return None if value is None else dict(value)


def spec_from_json(data: Any, where: str = "") -> JobSpec:
    read = _read(data, _SPEC, ("id",), where)
    spec = JobSpec(**read)
    prefix = f"{where}." if where else ""
    for role in ("workers", "servers"):
        low, high = getattr(spec, f"{role}_min"), getattr(spec, f"{role}_max")
        if low > high:
            raise _refuse(f"{prefix}{role}_max", high, f"at least {role}_min, which is {low}")
    return spec


# -- allocations and commands --------------------------------------------------------------------------------

_ALLOCATION = {"accelerator": _whole(-1), "parts": _list, "share_milli": _whole(0, GPU_MILLI)}


def allocation_to_json(allocation: Allocation) -> Json:
    """Parts as [node, workers, servers, [devices]]."""
    parts = [[part.node, part.workers, part.servers, list(part.devices)] for part in allocation.parts]
    return {"accelerator": allocation.accelerator, "parts": parts, "share_milli": allocation.share_milli}


def allocation_from_json(data: Any, where: str = "allocation") -> Allocation:
    read = _read(data, _ALLOCATION, ("accelerator", "parts", "share_milli"), where)
    parts, count = [], _whole(0)
    for i, item in enumerate(read["parts"]):
        at = f"{where}.parts[{i}]"
        if len(_list(item, at)) != 4:
            raise _refuse(at, item, "[node, workers, servers, [devices]]")
        devices = tuple(count(device, at) for device in _list(item[3], at))
        parts.append(Part(count(item[0], at), count(item[1], at), count(item[2], at), devices))
    return Allocation(read["accelerator"], tuple(parts), read["share_milli"])


_COMMAND: dict[str, Callable[[Any, str], Any]] = {
    "kind": _text, "job_id": _text, "generation": _whole(0), "seq": _whole(0),
    "allocation": allocation_from_json, "spec": spec_from_json, "why": _text,
}  # fmt: skip
_FIELDS = {"launch": ("allocation", "spec"), "resize": ("allocation",), "stop": ("why",)}


def command_to_json(command: Command) -> Json:
    head: Json = {"job_id": command.job_id, "generation": command.generation, "seq": command.seq}
    match command:
        case Launch():
            body = {"allocation": allocation_to_json(command.allocation), "spec": spec_to_json(command.spec)}
            return {"kind": "launch", **head, **body}
        case Resize():
            return {"kind": "resize", **head, "allocation": allocation_to_json(command.allocation)}
        case Stop():
            return {"kind": "stop", **head, "why": command.why}


def command_from_json(data: Any, where: str = "command") -> Command:
    kind = _object(data, where).get("kind")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise _refuse(f"{where}.kind", kind, "launch, resize or stop")
    keys = ("kind", "job_id", "generation", "seq", *_FIELDS[kind])
    read = _read(data, {key: _COMMAND[key] for key in keys}, keys, where)
    head = (JobId(read["job_id"]), read["generation"], read["seq"])
    if kind == "launch":
        return Launch(*head, read["allocation"], read["spec"])
    return Resize(*head, read["allocation"]) if kind == "resize" else Stop(*head, read["why"])
