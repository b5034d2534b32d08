"""Reasons: typed with figures, rendered as one sentence."""

import pytest

from trainmaster.model.job import JobId, Phase
from trainmaster.model.reason_text import sentence
from trainmaster.model.reasons import Reason, Why, why_phase


def test_one_gpu_is_singular() -> None:
    assert "needs 1 GPU;" in sentence(Reason(Why.SHAPE, needs_gpus=1))


@pytest.mark.parametrize("why", [why for why in Why if why != Why.NONE])
def test_every_reason_renders(why: Why) -> None:
    text = sentence(Reason(why, needs_gpus=2, free={"v100": 1.0}, behind=JobId("a"), details={"payoff": -1.5}))
    assert text
    assert "\n" not in text
    assert "None" not in text
    assert why.name not in text and text.partition(":")[0] != why.name.lower()


def test_details_are_shown_for_verdicts() -> None:
    assert sentence(Reason(Why.PRICE, details={"payoff": -2, "cost": 5})) == (
        "what it needs costs more than it is worth: cost 5, payoff -2"
    )
    assert sentence(Reason(Why.NONE)) == ""


def test_phases_that_explain_themselves() -> None:
    assert why_phase(Phase.PAUSED) == Why.PAUSED
    assert why_phase(Phase.LOST) == Why.LOST_NODE
    assert why_phase(Phase.PENDING) == Why.NONE
    assert why_phase(Phase.RESIZING) == Why.RESIZING
    assert why_phase(Phase.STOPPING) == Why.STOPPING


def test_a_deadline_that_is_not_promised_says_what_could_be() -> None:
    facts = {
        "deadline_s": 100.0, "fault": "no room beside what is promised", "earliest_deadline_s": 175.5,
        "with_type": "v100", "with_workers": 2, "more_gpus": 3, "more_type": "v100", "slack_of": "a", "slack_s": 7300.0,
    }  # fmt: skip
    text = sentence(Reason(Why.DEADLINE, details=facts))
    assert text == (
        "its deadline cannot be promised: no room beside what is promised; the earliest that could be is 1m16s later,"
        " with 2 workers of v100; it would take 3 GPUs more of v100 or some of the 2h01m that a has to spare"
    )
    unknown = {"deadline_s": 9.0, "fault": "unknown work", "remedy": "state the total steps"}
    assert sentence(Reason(Why.DEADLINE, details=unknown)).endswith("unknown work; state the total steps")


def test_a_job_turned_away_by_prices_is_told_what_would_let_it_in() -> None:
    facts = {"payoff": -1.25, "price_factor": 0.4, "lateness_s": 1200.0}
    assert sentence(Reason(Why.PRICE, details=facts)) == (
        "what it needs costs more than it is worth (payoff -1.25); it would be let in by prices below 0.4 of what they"
        " are or a worth that lasts 20m00s longer"
    )


def test_a_job_that_lacks_no_gpus_is_not_said_to_be_short_of_some() -> None:
    reason = Reason(Why.CAPACITY, needs_gpus=1, free={"v100": 2.0}, missing_type="v100")
    assert sentence(reason) == "needs 1 GPU; free: 2 v100"
