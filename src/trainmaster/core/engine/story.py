"""What a fault of the engine tells: the job's last transitions. Written at every move, read when one is illegal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmaster.core.codes import CANCEL, FINISH, GIVE_UP, PHASES, REJECT, TRIGGERS

if TYPE_CHECKING:
    from trainmaster.core.engine.engine_core import EngineCore

N_KEPT = 256
"""Moves of all jobs together; the oldest is overwritten."""
_LAST = (CANCEL, FINISH, GIVE_UP, REJECT)


def told(e: EngineCore, i: int, trigger: int) -> str:
    """The move that was asked for, and what went before it in the life of the same job."""
    moves, before = e.moves, []
    for k in range(max(0, e.n_moves - N_KEPT), e.n_moves):
        job_index, made, at_ms = (int(moves.values[k % N_KEPT * 3 + field]) for field in range(3))
        if job_index == i:
            before = [] if made in _LAST else [*before, f"{TRIGGERS[made]} at {at_ms / 1000:g} s"]
    ints = e.columns.ints
    return (
        f"'{TRIGGERS[trigger]}' is not possible in phase {PHASES[ints['phase'][i]]}: {e.label(i)}, generation "
        f"{ints['generation'][i]}, at {e.now_ms / 1000:g} s; before: {', '.join(before) or 'nothing'}"
    )
