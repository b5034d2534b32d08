"""What users see of a job: status, conditions, Events."""

from typing import Any

from trainmaster.backends.kubernetes.resources.events import event_body, event_name, job_event_of, object_of
from trainmaster.backends.kubernetes.resources.status import (
    StatusUpdate,
    clipped,
    reason_word,
    rejected_status,
    same_status,
    status_of,
)
from trainmaster.engine.ports import LogEntry
from trainmaster.model.errors import InputError


def tj(**status: Any) -> dict[str, Any]:
    meta = {"name": "resnet", "namespace": "vision", "uid": "0a1b2c3d-0", "generation": 3}
    return {"metadata": meta, "spec": {}, "status": status}


def update(now_s: float = 1000.0, **more: Any) -> StatusUpdate:
    view: dict[str, Any] = {
        "id": "vision.resnet.0a1b2c3d", "state": "pending", "why": "capacity", "reason": "needs 4 GPUs; free: none",
        "allocation": [], "eta_s": None, "progress": {"fraction": None}, "attempts": 0, "started": None, "ended": None,
        "request": {"workers": {"min": 1, "max": 4}}, "stalled_s": None, "output": "", "hint": "",
    }  # fmt: skip
    return StatusUpdate({**view, **more}, 0, now_s)


PLACES = [
    {"node": "n0", "accelerator": "V100", "workers": 2, "servers": 1, "devices": [0, 1]},
    {"node": "n1", "accelerator": "V100", "workers": 1, "servers": 0, "devices": [3]},
]


def running(**more: Any) -> StatusUpdate:
    return update(state="running", why="", reason="", allocation=PLACES, attempts=1, started=900.0, **more)


def test_a_waiting_job_says_why() -> None:
    status = status_of(tj(), update())
    assert (status["state"], status["reason"]) == ("pending", "Capacity")
    assert status["message"] == "needs 4 GPUs; free: none"
    assert status["shown"]["workers"] == "0/1-4"
    assert status["allocation"] == {}
    scheduled = next(c for c in status["conditions"] if c["type"] == "Scheduled")
    assert (scheduled["status"], scheduled["reason"]) == ("False", "Capacity")


def test_a_running_job_says_where_and_how_far() -> None:
    status = status_of(tj(), running(progress={"fraction": 0.4267}, eta_s=120.0))
    assert (status["state"], status["reason"], status["progress"]) == ("running", "", 0.4267)
    assert status["allocation"]["workers"] == 3
    assert status["shown"] == {"workers": "3/1-4", "type": "V100", "progress": "42%", "eta": "1970-01-01 00:18"}
    assert status["startTime"] == "1970-01-01T00:15:00Z"


OUTPUT = "  File \"t.py\", line 1\nModuleNotFoundError: No module named 'x'"


def test_a_job_that_failed_shows_the_error_of_the_member_that_failed() -> None:
    told: dict[str, Any] = {"reason": "failed after 3 attempts", "output": OUTPUT, "hint": "install it"}
    status = status_of(tj(), update(state="failed", why="", **told))
    assert (status["reason"], status["message"].split("; ")[:2]) == (
        "Failed",
        ["failed after 3 attempts", "install it"],
    )
    assert "No module named 'x'" in status["message"]
    assert "No module named 'x'" in next(c for c in status["conditions"] if c["type"] == "Failed")["message"]
    again = status_of(tj(), update(why="backoff", **told))
    assert "No module named 'x'" in again["message"], "while it waits for its next attempt too"
    assert OUTPUT not in status_of(tj(), update(why="capacity", **told))["message"]


def test_a_stalled_job_says_since_when_and_says_it_once() -> None:
    status = status_of(tj(), running(stalled_s=100.0))
    assert (status["state"], status["reason"]) == ("running", "Stalled")
    assert status["message"] == "no step since 1970-01-01T00:15:00Z"
    assert same_status(status_of(tj(), running(now_s=1300.0, stalled_s=400.0)), status), "time that passed is no news"
    assert not same_status(status_of(tj(), running()), status)
    stalled = job_event_of(LogEntry(0, "stalled", "j", "j is stalled: no step for 100 s at step 5", {}))
    assert stalled is not None
    assert (stalled.reason, stalled.warning) == ("Stalled", True)


def test_conditions_keep_the_time_at_which_they_became_so() -> None:
    first = status_of(tj(), update(now_s=1000.0))
    later = status_of(tj(**first), update(now_s=2000.0))
    assert {c["lastTransitionTime"] for c in later["conditions"]} == {"1970-01-01T00:16:40Z"}
    started = status_of(tj(**later), running(now_s=3000.0))
    times = {c["type"]: c["lastTransitionTime"] for c in started["conditions"]}
    assert times["Running"] == "1970-01-01T00:50:00Z"
    assert times["Complete"] == "1970-01-01T00:16:40Z"


def test_an_estimate_that_wavers_is_no_news_and_progress_is() -> None:
    first = status_of(tj(), running(progress={"fraction": 0.5}, eta_s=121.0))
    again = status_of(tj(), running(progress={"fraction": 0.5}, eta_s=125.0, now_s=1001.0))
    further = status_of(tj(), running(progress={"fraction": 0.6}, eta_s=125.0))
    sooner = status_of(tj(), running(progress={"fraction": 0.5}, eta_s=60.0))
    unknown = status_of(tj(), running(progress={"fraction": 0.5}))
    assert same_status(first, again)
    assert not same_status(sooner, first) and not same_status(unknown, first) and not same_status(first, unknown)
    assert not same_status(first, further)
    assert not same_status(first, {})


def test_rejection_names_the_field() -> None:
    error = InputError("0 workers", "at least 1", column="spec.workers.min")
    status = rejected_status(tj(), error, 5.0)
    assert (status["state"], status["reason"]) == ("rejected", "Invalid")
    assert "spec.workers.min" in status["message"]
    assert next(c for c in status["conditions"] if c["type"] == "Accepted")["status"] == "False"


def test_texts_are_short_and_harmless() -> None:
    assert clipped("a\x1b[31mb\nc") == "a [31mb c"
    assert len(clipped("x" * 10_000)) == 1024
    assert reason_word("never_fits") == "NeverFits"


def entry(kind: str, text: str, **details: Any) -> LogEntry:
    return LogEntry(0, kind, "vision.resnet.0a1b2c3d", f"vision.resnet.0a1b2c3d {text}", details)


def test_events_tell_starts_sizes_and_ends_but_not_what_the_user_did() -> None:
    launch = job_event_of(entry("launch", "starts on n0 (2)", generation=2))
    assert launch is not None and (launch.reason, launch.message) == ("Scheduled", "Starts on n0 (2) (attempt 2)")
    failed = job_event_of(entry("failed", "failed"))
    assert failed is not None and failed.warning
    assert job_event_of(entry("submitted", "submitted")) is None
    assert job_event_of(entry("exited", "ended: exit 0", code=0)) is None


def test_the_same_thing_said_again_has_the_same_name() -> None:
    about = object_of(tj())
    one, other = job_event_of(entry("launch", "starts on n0")), job_event_of(entry("launch", "starts on n1"))
    assert one is not None and other is not None
    assert event_name(about, one) == event_name(about, one) != event_name(about, other)
    body = event_body(about, one, "1970-01-01T00:00:00Z")
    assert body["involvedObject"]["name"] == "resnet"
    assert body["metadata"]["name"].startswith("resnet.")
