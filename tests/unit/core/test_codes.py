"""Numbers in compiled code stand for the same as the enumerations, and every compiled constant has a value."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import trainmaster
from trainmaster.core import codes
from trainmaster.core.engine.verify import RULES
from trainmaster.core.schema import FLOAT_COLUMNS, INT_COLUMNS, NEW_JOB
from trainmaster.engine.lifecycle import NEXT_PHASE, TABLE, Trigger
from trainmaster.model.job import Phase
from trainmaster.model.placement import Strategy
from trainmaster.model.reasons import Why
from trainmaster.model.units import GPU_MILLI, MS_PER_S, NEVER_MS

PACKAGE = Path(trainmaster.__file__).parent
COMPILED = sorted(p for p in PACKAGE.rglob("*.pxd") if p.with_suffix(".py").exists())


def test_phases_reasons_strategies_and_units() -> None:
    assert {name: getattr(codes, name) for name in Phase.__members__} == {m.name: int(m) for m in Phase}
    assert list(Phase.__members__) == list(codes.PHASES)
    for name in ("CAPACITY", "BEHIND", "SHAPE", "OUTRANKED", "BACKOFF", "NO_NODE"):
        assert getattr(codes, name) == Why[name]
    assert all(getattr(codes, strategy.name) == strategy for strategy in Strategy)
    assert (codes.WHOLE, codes.MS_PER_S, codes.NEVER_MS) == (GPU_MILLI, MS_PER_S, NEVER_MS)
    assert len(RULES) == codes.TAKEN + 1


def test_triggers() -> None:
    assert [trigger.name.lower().replace("_", "-") for trigger in Trigger] == list(codes.TRIGGERS)
    assert [int(trigger) for trigger in Trigger] == list(range(codes.N_TRIGGERS))
    sent = {"LAUNCH": "LAUNCH_SENT", "STARTED": "HAS_STARTED", "RESIZE": "RESIZE_SENT", "RESIZED": "HAS_RESIZED"}
    for trigger in Trigger:
        name = {**sent, "STOP": "STOP_SENT"}.get(trigger.name, trigger.name)
        assert getattr(codes, name) == trigger
    for phase in Phase:
        for trigger in Trigger:
            expected = TABLE[int(phase)].get(trigger, -1)
            assert NEXT_PHASE[phase * codes.N_TRIGGERS + trigger] == expected


def test_columns_have_names_of_their_own() -> None:
    assert len({*INT_COLUMNS, *FLOAT_COLUMNS}) == len(INT_COLUMNS) + len(FLOAT_COLUMNS)
    assert NEW_JOB.keys() <= set(INT_COLUMNS)


@pytest.mark.parametrize("types", COMPILED, ids=lambda p: p.stem)
def test_every_constant_of_a_compiled_module_is_set(types: Path) -> None:
    """One that is declared and never set is 0, and nobody notices."""
    tree = ast.parse(types.with_suffix(".py").read_text())
    known = {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    known |= {
        n.id for top in tree.body for n in ast.walk(top) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    declared = re.findall(r"^cdef (?:i64|double|bint) ([A-Za-z_0-9, ]+)$", types.read_text(), re.MULTILINE)
    names = {name.strip() for line in declared for name in line.split(",") if name.strip()}
    assert names <= known
