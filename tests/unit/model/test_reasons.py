"""Reasons: typed with figures, rendered as one sentence."""

import pytest

from trainmaster.model.job import JobId, Phase
from trainmaster.model.reasons import Reason, Why, explain, render, why_phase
from trainmaster.testing.builders import a_job, a_view, row_of


def test_capacity_names_holders_and_the_smallest_change() -> None:
    jobs = [a_job("big", gpus=6), a_job("small", gpus=1), a_job("x", gpus=4)]
    view = a_view(jobs, "k80=1,v100=8", running={"big": 6, "small": 1})
    reason = explain(view, row_of(view, "x"), Why.CAPACITY)
    assert reason.needs_gpus == 4
    assert reason.holders == (("big", 6.0), ("small", 1.0))
    assert reason.missing_gpus == 4 - max(reason.free.values())
    text = render(reason)
    assert "needs 4 GPUs" in text
    assert "big (6)" in text
    assert f"would start with {reason.missing_gpus:g} GPUs more of v100" in text


def test_holders_on_types_that_do_not_help_are_left_out() -> None:
    jobs = [
        a_job("elsewhere", gpus=1, types=("k80",)),
        a_job("rival", gpus=1, types=("v100",)),
        a_job("x", types=("v100",)),
    ]
    view = a_view(jobs, "k80=1,v100=1", running=["elsewhere", "rival"])
    reason = explain(view, row_of(view, "x"), Why.CAPACITY)
    assert reason.holders == (("rival", 1.0),)
    assert set(reason.free) == {"v100"}


def test_one_gpu_is_singular() -> None:
    assert "needs 1 GPU;" in render(Reason(Why.SHAPE, needs_gpus=1))


@pytest.mark.parametrize("why", [why for why in Why if why != Why.NONE])
def test_every_reason_renders(why: Why) -> None:
    text = render(Reason(why, needs_gpus=2, free={"v100": 1.0}, behind=JobId("a"), details={"payoff": -1.5}))
    assert text
    assert "\n" not in text
    assert "None" not in text


def test_details_are_shown_for_verdicts() -> None:
    assert render(Reason(Why.PRICE, details={"payoff": -2, "cost": 5})) == "price: cost 5, payoff -2"
    assert render(Reason(Why.NONE)) == ""


def test_behind_names_the_blocker() -> None:
    view = a_view([a_job("first", gpus=9), a_job("second")])
    reason = explain(view, 1, Why.BEHIND, 0)
    assert reason.behind == "first"
    assert "behind first" in render(reason)


def test_phases_that_explain_themselves() -> None:
    assert why_phase(Phase.PAUSED) == Why.PAUSED
    assert why_phase(Phase.LOST) == Why.LOST_NODE
    assert why_phase(Phase.PENDING) == Why.NONE


def test_a_deadline_that_is_not_promised_says_what_could_be() -> None:
    facts = {
        "deadline_s": 100.0, "fault": "no room beside what is promised", "earliest_deadline_s": 175.5,
        "with_type": "v100", "with_workers": 2, "more_gpus": 3, "more_type": "v100", "slack_of": "a", "slack_s": 7300.0,
    }  # fmt: skip
    text = render(Reason(Why.DEADLINE, details=facts))
    assert text == (
        "its deadline cannot be promised: no room beside what is promised; the earliest that could be is 1m16s later,"
        " with 2 workers of v100; it would take 3 GPUs more of v100 or some of the 2h01m that a has to spare"
    )
    unknown = {"deadline_s": 9.0, "fault": "unknown work", "remedy": "state the total steps"}
    assert render(Reason(Why.DEADLINE, details=unknown)).endswith("unknown work; state the total steps")


def test_a_job_turned_away_by_prices_is_told_what_would_let_it_in() -> None:
    facts = {"payoff": -1.25, "price_factor": 0.4, "lateness_s": 1200.0}
    assert render(Reason(Why.PRICE, details=facts)) == (
        "what it needs costs more than it is worth (payoff -1.25); it would be let in by prices below 0.4 of what they"
        " are or a worth that lasts 20m00s longer"
    )
