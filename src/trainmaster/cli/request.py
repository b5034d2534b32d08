"""From options and a job file to the request that is sent."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainmaster.cli.amounts import environment_of, mib_of, range_of
from trainmaster.cli.job_options import JobOptions
from trainmaster.cli.times import deadline_seconds
from trainmaster.model.errors import InputError

PASSED_ON = ("CONDA_PREFIX", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "VIRTUAL_ENV")
"""Variables that decide which `python` runs: a job on this machine sees them as its user does."""

_OPTION_OF = {
    "name": "--name", "model": "--model", "steps": "--steps", "epochs": "--epochs", "batch_size": "--batch-size",
    "weight": "--weight", "priority": "--priority", "entity": "--entity", "budget": "--budget", "array": "--array",
    "max_attempts": "--max-attempts", "gpu_types": "--gpu-type", "cpus_per_worker": "--cpus", "after": "--after",
    "memory_mib_per_worker": "--memory", "gpus_per_worker": "--gpus-per-worker", "deadline_s": "--deadline",
    "image": "--image", "namespace": "--namespace",
    "steps_per_s": "--speed", "servers": "--servers", "command": "COMMAND",
}  # fmt: skip


def build(options: JobOptions, now_s: float) -> dict[str, Any]:
    """The body of `POST /jobs`, checked before anything is sent."""
    from trainmaster.cli.spec_file import check_request, read_spec

    spec = read_spec(options.file) if options.file is not None else None
    typed = _typed(options, now_s)
    request: dict[str, Any] = {**(spec.data if spec is not None else {}), **typed}
    if request.get("image") is None or options.workdir is not None or "workdir" in request:
        # A folder of this machine means nothing in a container: there the image's own is the default.
        request["workdir"] = _workdir(options, request, spec.path if spec is not None else None)
    own = request.get("env")
    if isinstance(own, dict) or own is None:
        request["env"] = {**(own or {}), **environment_of(options.env or [])}
    if "deadline_kind" in typed and not request.get("deadline_s"):
        raise InputError("--soft without a deadline", "--deadline too", column="--soft")
    check_request(request, spec, _named(options, typed))
    return request


def _named(options: JobOptions, typed: dict[str, Any]) -> dict[str, str]:
    """The option that set a field, for every field that was typed."""
    named = {field: option for field, option in _OPTION_OF.items() if field in typed}
    if "workers" in typed:
        named["workers"] = "--elastic" if options.elastic is not None else "--gpus"
    return named


def in_words_of_options(fault: InputError, options: JobOptions, now_s: float) -> InputError:
    """A fault that the service found in a field, told of the option that set it."""
    option = _named(options, _typed(options, now_s)).get(str(fault.column).partition(".")[0])
    return fault if option is None else replace(fault, column=option)


def with_environment(request: dict[str, Any]) -> dict[str, Any]:
    """The request with the variables of this shell that a job on this machine needs; its own come first."""
    inherited = {key: os.environ[key] for key in PASSED_ON if key in os.environ}
    return {**request, "env": {**inherited, **request["env"]}}


def _typed(options: JobOptions, now_s: float) -> dict[str, Any]:
    """Fields that options set; what was not typed is not there."""
    asked: dict[str, Any] = {
        "command": options.command or None,
        "name": options.name,
        "model": options.model,
        "batch_size": options.batch_size,
        "steps": options.steps,
        "epochs": options.epochs,
        "weight": options.weight,
        "priority": options.priority,
        "entity": options.entity,
        "budget": options.budget,
        "max_attempts": options.max_attempts,
        "after": options.after or None,
        "array": options.array,
        "image": options.image,
        "namespace": options.namespace,
        "gpu_types": options.gpu_type or None,
        "cpus_per_worker": options.cpus,
        "memory_mib_per_worker": None if options.memory is None else mib_of(options.memory, "--memory"),
        "servers": None if options.servers is None else range_of(options.servers, "--servers"),
        "steps_per_s": _speeds(options.speed) if options.speed else None,
        "deadline_s": None if options.deadline is None else deadline_seconds(options.deadline, now_s),
        "deadline_kind": "soft" if options.soft else None,
        "preemptible": False if options.no_preempt else None,
    }
    asked.update(_size(options))
    return {field: value for field, value in asked.items() if value is not None}


def _size(options: JobOptions) -> dict[str, Any]:
    each = options.gpus_per_worker
    if options.elastic is not None:
        if options.gpus is not None:
            raise InputError("--gpus and --elastic exclude each other", "one of them", column="--elastic")
        workers = range_of(options.elastic, "--elastic")
        if workers["max"] < 1:
            raise InputError(f"'{options.elastic}' allows no worker", "at least 1", column="--elastic")
        return {"workers": workers, "gpus_per_worker": each}
    if options.gpus is None:
        return {"gpus_per_worker": each}
    wanted = options.gpus
    if not 0 <= wanted <= 100_000:
        raise InputError(f"{wanted:g} is no number of GPUs", "0 or more", column="--gpus")
    if each is None:
        each = wanted if wanted < 1 else 1.0
    count = 1 if wanted == 0 else wanted / each if each > 0 else 0
    if count < 1 or count != int(count):
        expected = "--gpus that is a multiple of --gpus-per-worker"
        raise InputError(f"{wanted:g} GPUs cannot be dealt out {each:g} to a worker", expected, column="--gpus")
    return {"workers": {"min": int(count), "max": int(count)}, "gpus_per_worker": each}


def _speeds(pairs: list[str]) -> dict[str, float]:
    speeds: dict[str, float] = {}
    for pair in pairs:
        kind, equals, number = pair.partition("=")
        try:
            if not (kind and equals):
                raise ValueError
            speeds[kind] = float(number)
        except ValueError:
            raise InputError(f"'{pair}' is no speed", "TYPE=STEPS_PER_SECOND, as v100=12.5", column="--speed") from None
    return speeds


def _workdir(options: JobOptions, request: dict[str, Any], spec: Path | None) -> Any:
    """Absolute: an option counts from here, a file's field from the file, the default is here."""
    if options.workdir is not None:
        return str(options.workdir.expanduser().absolute())
    stated = request.get("workdir")
    if isinstance(stated, str) and spec is not None:
        return str((spec.absolute().parent / Path(stated).expanduser()).absolute())
    return str(Path.cwd()) if stated is None else stated
