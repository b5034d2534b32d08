"""`make demo` finds the training scripts of the checkout, and judges predictions as it says."""

from typing import Any

from trainmaster.cli.live.demo import Said, _examples, _jobs, judged, verdict


def test_the_demo_finds_its_scripts() -> None:
    folder = _examples()
    for job in _jobs(folder):
        script = job["command"][1]
        assert script.startswith(str(folder)) or "-m" in job["command"] or "-c" in job["command"]


def test_the_demo_declares_no_speed_for_it_is_another_on_every_machine() -> None:
    assert not [job["name"] for job in _jobs(_examples()) if "steps_per_s" in job]


def _finished(**more: Any) -> dict[str, Any]:
    return {"name": "a", "state": "finished", "submitted": 100.0, "started": 110.0, "ended": 200.0, "attempts": 1,
            "preemptions": 0, "slack_s": None, **more}  # fmt: skip


def test_the_prediction_at_half_life_is_judged() -> None:
    said = [Said(at, at + 10, middle, at + 60) for at, middle in ((120.0, 150.0), (149.0, 190.0), (180.0, 200.0))]
    row = judged(_finished(), said, 2)
    assert row["said"] == {"at_s": 49.0, "early_s": 59.0, "middle_s": 90.0, "late_s": 109.0}
    assert (row["error"], row["held"], row["resizes"]) == (-0.1, True, 2)


def test_a_job_of_which_nothing_was_known_by_then_is_judged_by_the_first_prediction() -> None:
    row = judged(_finished(), [Said(180.0, 181.0, 190.0, 199.0), Said(195.0, 199.0, 200.0, 201.0)], 0)
    assert (row["said"]["at_s"], row["error"], row["held"]) == (80.0, -0.1, False)
    assert verdict([row])[1] == "0 of 1 jobs ended within the band of 9 times of 10."


def test_what_was_never_predicted_is_said() -> None:
    plain = judged(_finished(name="plain"), [], 0)
    assert verdict([plain]) == ["Nothing was predicted: no job had reported before it ended."]
    known = judged(_finished(), [Said(150.0, 160.0, 200.0, 210.0)], 0)
    assert verdict([known, plain])[-1].startswith("Of plain nothing was known before the end")
