"""The life-cycle table: every pair of phase and trigger, against a list written out by hand."""

import pytest
from harness import job, new_engine, running

from trainmaster.core.engine.engine_core import move
from trainmaster.core.engine.story import N_KEPT
from trainmaster.engine.lifecycle import LIVE, TABLE, IllegalTransition, Trigger, next_phase
from trainmaster.model import event as ev
from trainmaster.model.job import STATE_OF, TERMINAL, JobId, Phase, State

LEGAL = """
PENDING    reserve RESERVED, reject REJECTED, cancel CANCELLED, pause PAUSED, give-up FAILED
RESERVED   unreserve PENDING, launch LAUNCHING, cancel CANCELLED, pause PAUSED
LAUNCHING  started RUNNING, stop STOPPING, lose LOST, requeue PENDING, finish FINISHED, give-up FAILED
RUNNING    resize RESIZING, stop STOPPING, lose LOST, requeue PENDING, finish FINISHED, give-up FAILED
RESIZING   resized RUNNING, stop STOPPING, lose LOST, requeue PENDING, finish FINISHED, give-up FAILED
STOPPING   move RESERVED, pause PAUSED, cancel CANCELLED, lose LOST, requeue PENDING, finish FINISHED
STOPPING   give-up FAILED
LOST       pause PAUSED, cancel CANCELLED, requeue PENDING, finish FINISHED, give-up FAILED
PAUSED     resume PENDING, cancel CANCELLED
"""
EXPECTED = {
    (Phase[line.split()[0]], Trigger[pair.split()[0].upper().replace("-", "_")]): Phase[pair.split()[1]]
    for line in LEGAL.strip().splitlines()
    for pair in line.split(maxsplit=1)[1].split(", ")
}


@pytest.mark.parametrize("phase", list(Phase), ids=lambda p: p.name)
@pytest.mark.parametrize("trigger", list(Trigger), ids=lambda t: t.name)
def test_every_pair(phase: Phase, trigger: Trigger) -> None:
    if (phase, trigger) in EXPECTED:
        assert next_phase(int(phase), trigger) == EXPECTED[phase, trigger]
    else:
        with pytest.raises(IllegalTransition, match=phase.name):
            next_phase(int(phase), trigger)


def test_ends_are_final_and_everything_else_can_end() -> None:
    assert {phase for phase in Phase if not TABLE[int(phase)]} == TERMINAL
    reached = set(TERMINAL)
    while True:
        more = {phase for phase, moves in TABLE.items() if reached & set(moves.values())} | reached
        if more == reached:
            break
        reached = more
    assert reached == {int(phase) for phase in Phase}


def test_live_phases_are_those_that_can_lose_or_end_a_process() -> None:
    assert {phase for phase, moves in TABLE.items() if Trigger.FINISH in moves} == LIVE


def test_states_that_users_see() -> None:
    assert set(STATE_OF) == set(Phase)
    assert {STATE_OF[phase] for phase in Phase if phase in TERMINAL} == {
        State.FINISHED, State.FAILED, State.CANCELLED, State.REJECTED,
    }  # fmt: skip


def test_an_illegal_move_tells_the_story_of_its_job() -> None:
    engine, _ = new_engine()
    for k in range(N_KEPT // 3):  # four moves each: the oldest are overwritten
        launch = running(engine, job(f"before-{k}"), 1_000)
        engine.step(1_000, ev.Exited(launch.job_id, launch.generation, 0, 100.0))
    running(engine, job("b"), 5_000)
    running(engine, job("c"), 6_000)
    with pytest.raises(
        IllegalTransition,
        match=r"^'resume' is not possible in phase RUNNING: job 'b', generation 1, at 6 s; "
        r"before: reserve at 5 s, launch at 5 s, started at 5 s$",
    ):
        move(engine, engine.columns.job_index_of[JobId("b")], Trigger.RESUME)
