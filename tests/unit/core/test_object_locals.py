"""Locals of compiled functions are C numbers and arrays. One that fell back to a Python object makes a loop many times
slower, and nothing else shows it: this reads the C that Cython wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
GENERATED = max((ROOT / "build").glob("fast-*"), key=lambda folder: folder.stat().st_mtime_ns, default=ROOT / "build")
RECORD = ROOT / "src" / "trainmaster" / "_compiled.json"
FUNCTION = re.compile(r"^static [^\n;]*?__pyx_f_(\w+)\([^;{]*\)(?: CYTHON_\w+)? \{", re.M)

ALLOWED = {
    # They grow or widen arrays by NumPy: seldom called.
    "sim.attempts.Attempts._widen": {"extra", "old"},
    "sim.jobs.SimJobs.reserve": {"fresh"},
    "state.job_arrays.JobArrays.resize": {"k", "name", "values"},
    "state.job_arrays.JobArrays.widen": {"rows"},
    "state.job_arrays.JobArrays._bind": {"floats", "ints"},
    "engine.queue_pass.QueuePass._make_room": {"is_active"},
    "waiting_queue.WaitingQueue.fit": {"more"},
    # Once a run, and for policies that remember something of each job.
    "sim.arrivals.Arrivals._constants": {"first", "name", "values", "varied"},
    "sim.arrivals.submit": {"column"},
    # They return an array that a typed function fills.
    "state.job_arrays.work_done_column": {"out"},
    "state.job_arrays.remaining_column": {"out"},
    "state.job_arrays.service_column": {"out"},
    "gavel.rounds.Rounds.competitors": {"rows"},
    "gavel.rounds.Rounds.figures": {"figures"},
    "gavel.rounds.Rounds.gpus_up": {"gpus"},
    "gavel.rounds.Rounds.speeds_at": {"speeds"},
    # Once a decision, outside their loops.
    "deadline.replanning.rearrange": {"before"},
    "deadline.replanning.keep_most": {"before"},
    "gavel.round_pass.RoundPass.bind": {"memo", "settings", "values"},
    "gavel.round_pass.RoundPass._renew": {"engine", "isolated", "memo", "name", "slots"},
    "gavel.rounds.Rounds.no_pairs": {"none"},
    # When not every job of a slot can have its smallest size.
    "sizing.world.SlotWorld._turns": {"key"},
    # A scorer that is no compiled network is asked in Python.
    "dl2.episode.Episode._score": {"rows", "scores", "void"},
    # Elastic jobs only: the factor of a size, from a dictionary.
    "sim.world.SimWorld._known_speedup": {"known"},
}
"""By `module.Class.function`: locals that may be objects."""


def _qualified(mangled: str) -> str:
    """`11trainmaster_4core_5state_8messages_8Messages__grow` -> `messages.Messages._grow`."""
    parts: list[str] = []
    while match := re.match(r"(\d+)(\w+)", mangled):
        length = int(match[1])
        parts.append(match[2][:length])
        mangled = match[2][length + 1 :]
    return ".".join([*parts[2:], mangled])


def _object_locals(source: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for match in FUNCTION.finditer(source):
        if "View" in match[1]:  # memoryviews of Cython itself
            continue
        end = source.index("\n}\n", match.end())
        names = set(re.findall(r"^  PyObject \*__pyx_v_(\w+)", source[match.end() : end], re.M))
        if names:
            found[_qualified(match[1])] = names
    return found


def test_no_local_is_an_object_unless_it_is_listed() -> None:
    if not GENERATED.exists() or not RECORD.exists():
        pytest.skip("nothing was compiled here")
    found: dict[str, set[str]] = {}
    for module in json.loads(RECORD.read_text())["modules"]:
        path = GENERATED / Path(*module.split(".")).with_suffix(".c")
        if path.exists():
            found |= _object_locals(path.read_text())
    unexpected = {name: sorted(names - ALLOWED.get(name, set())) for name, names in found.items()}
    assert found, "no compiled function was read: is the folder right?"
    assert not {name: names for name, names in unexpected.items() if names}


def test_an_object_local_is_seen() -> None:
    source = "static void __pyx_f_11trainmaster_4core_5state_8messages_8Messages__grow(struct X *self) {\n"
    source += "  PyObject *__pyx_v_name = NULL;\n  double __pyx_v_rate;\n}\n"
    assert _object_locals(source) == {"state.messages.Messages._grow": {"name"}}
