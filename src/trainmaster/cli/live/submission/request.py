"""From options and a job file to the request that is sent."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from trainmaster.cli.live.submission.job_options import JobOptions, option_of
from trainmaster.cli.shared.amounts import curve_of, environment_of, mib_of, number_of, range_of, speeds_of
from trainmaster.cli.shared.times import deadline_seconds, seconds_of
from trainmaster.jobspec.model import JobRequest, Option, note_of
from trainmaster.jobspec.reading import request_from
from trainmaster.model.errors import InputError

PASSED_ON = ("CONDA_PREFIX", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "VIRTUAL_ENV")
"""Variables that decide which `python` runs: a job on this machine sees them as its user does."""


class Request(NamedTuple):
    body: dict[str, Any]
    """Of `POST /jobs`."""
    options: dict[str, str]
    """The option that set a field, for every field that was typed."""

    def blame(self, fault: InputError) -> InputError:
        """A fault in a field, told of the option that set it."""
        option = self.options.get(str(fault.column).partition(".")[0])
        return fault if option is None else replace(fault, column=option)


def build(options: JobOptions, now_s: float) -> Request:
    """The request, checked before anything is sent."""
    spec = None
    if options.file is not None:
        from trainmaster.cli.live.submission.spec_file import read_spec

        spec = read_spec(options.file)
    typed, named = _typed(options, now_s)
    data: dict[str, Any] = {**(spec.data if spec is not None else {}), **typed}
    if data.get("image") is None or "workdir" in data:
        # A folder of this machine means nothing in a container: there the image's own is the default.
        data["workdir"] = _workdir(typed, data, spec.path if spec is not None else None)
    own = spec.data.get("env") if spec is not None else None
    if isinstance(own, dict) and "env" in typed:
        data["env"] = {**own, **typed["env"]}
    if "deadline_kind" in typed and not data.get("deadline_s"):
        raise InputError("--soft without a deadline", "--deadline too", column="--soft")
    try:
        body = request_from(data).model_dump(mode="json", exclude_unset=True)
    except InputError as fault:
        field = str(fault.column)
        if field.partition(".")[0] in named:
            raise Request(data, named).blame(fault) from None
        if field == "command" and fault.what == "is required":
            raise InputError("no command", "it after `--`, as in: trainmaster submit -- python train.py") from None
        place = spec.place(field.split(".")) if spec is not None else None
        raise replace(fault, what=f"field '{field}': {fault.what}", file=place, column=None) from None
    return Request(body, named)


def with_environment(body: dict[str, Any]) -> dict[str, Any]:
    """The request with the variables of this shell that a job on this machine needs; its own come first."""
    inherited = {key: os.environ[key] for key in PASSED_ON if key in os.environ}
    return {**body, "env": {**inherited, **body.get("env", {})}}


def _typed(options: JobOptions, now_s: float) -> tuple[dict[str, Any], dict[str, str]]:
    """Fields that options set, and those options; what was not typed is not there."""
    forms: dict[str, Callable[[Any, str], Any]] = {
        "range": range_of,
        "memory": mib_of,
        "speeds": speeds_of,
        "curve": curve_of,
        "environment": environment_of,
        "json": _json,
        "duration": seconds_of,
        "deadline": lambda text, option: deadline_seconds(text, now_s, option),
    }
    typed: dict[str, Any] = {}
    for field, text in options.given.items():
        note: Option = note_of(JobRequest, field, Option)
        parse = forms.get(note.form)
        typed[field] = note.sets if note.sets is not None else text if parse is None else parse(text, option_of(field))
    named = {field: option_of(field) for field in typed}
    if options.gpus is not None:
        if "workers" in typed:
            raise InputError("--gpus and --elastic exclude each other", "one of them", column="--elastic")
        typed.update(_dealt_out(options.gpus, options.given.get("gpus_per_worker")))
        named = {"workers": "--gpus", "gpus_per_worker": "--gpus", **named}
    return typed, named


def _dealt_out(gpus: str, each: str | None) -> dict[str, Any]:
    """`--gpus` is a total: workers times GPUs per worker."""
    total = number_of(gpus, "--gpus")
    per_worker = number_of(each, "--gpus-per-worker") if each is not None else total if 0 < total < 1 else 1.0
    if total == 0:
        return {"workers": {"min": 1, "max": 1}, "gpus_per_worker": 0 if each is None else per_worker}
    count = total / per_worker if per_worker > 0 else 0
    if count < 1 or count != int(count):
        raise InputError(f"{total:g} is not divisible by --gpus-per-worker {per_worker:g}", column="--gpus")
    return {"workers": {"min": int(count), "max": int(count)}, "gpus_per_worker": per_worker}


def _json(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"invalid JSON '{text[:60]}'", 'an object such as {"kind": "linear"}', column=option) from None


def _workdir(typed: dict[str, Any], data: dict[str, Any], spec: Path | None) -> Any:
    """Absolute: an option counts from here, a file's field from the file, the default is here."""
    stated = data.get("workdir")
    if stated is None:
        return str(Path.cwd())
    if not isinstance(stated, str):
        return stated
    base = Path.cwd() if "workdir" in typed or spec is None else spec.absolute().parent
    return str((base / Path(stated).expanduser()).absolute())
