"""The commands that read: `queue job why nodes events policy entities`, as tables and as JSON."""

import json
from typing import Any

import pytest

from trainmaster.wire import api

RUNNING = {
    "state": "running", "phase": "running", "attempts": 1, "emulated": True, "eta_s": 3725.0,
    "started": 1_800_000_050.0,
    "allocation": [api.PlaceView(node="n0", accelerator="v100", workers=3, servers=0, devices=[0, 1, 2])],
    "progress": api.ProgressView(work_done=500, work_total=1000, fraction=0.5, rate=12.5, loss=0.25),
}  # fmt: skip


@pytest.fixture
def busy(service: Any) -> Any:
    """One runs, two wait, one has ended."""
    size = api.Workers(min=1, max=4)
    elastic = api.JobRequest(command=["python", "a.py"], name="vision", workers=size, entity="blue")
    late = api.JobRequest(command=["x"], name="late", deadline_s=100, steps=1000)
    service.add("job-3", position=2, reason="kept in order behind job-2", why="behind")
    service.add("job-2", position=1, request=late, slack_s=-30.0, reason="needs 1 GPU; free: none", why="capacity")
    service.add("job-1", request=elastic, **RUNNING)
    service.add("job-0", state="finished", exit="exit 0", attempts=1)
    return service


def test_queue_shows_running_then_waiting_in_order(busy: Any, invoke: Any) -> None:
    code, out, err = invoke("queue")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("fifo on v100=4 (emulated speeds): ")
    assert next(word for line in lines[2:] for word in line.split() if word.startswith("job-")) == "job-1"
    assert "job-0" not in out
    first, second, third = lines[2:5]
    assert "vision" in first and "3/1..4" in first and "50%" in first and "1h02m" in first and "v100" in first
    assert second.split()[:3] == ["1", "job-2", "late"] and "-30s" in second and "needs 1 GPU" in second
    assert third.split()[:2] == ["2", "job-3"]


@pytest.mark.parametrize("columns", [80, 100, 120, 160])
def test_queue_fits_its_terminal(busy: Any, invoke: Any, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    busy.change("job-2", reason="needs 8 GPUs; " + "held by many " * 40)
    code, out, _ = invoke("queue")
    assert code == 0
    assert max(len(line) for line in out.splitlines()) <= columns
    rows = out.splitlines()[2:]
    assert len(rows) == 3, "no row is wrapped"
    assert "job-2" in rows[1] and "pending" in rows[1] and "needs 8 G" in rows[1]


def test_queue_reads_every_page(service: Any, as_json: Any) -> None:
    for number in range(10):
        service.add(f"job-{number}", position=10 - number)
    page = as_json("queue")
    assert [job["id"] for job in page["jobs"]] == [f"job-{number}" for number in range(9, -1, -1)]
    assert page["total"] == 10
    assert [job["id"] for job in as_json("queue", "--limit", "4")["jobs"]] == ["job-3", "job-2", "job-1", "job-0"]
    service.add("job-10", state="running")
    cut = as_json("queue", "--limit", "4")
    assert [job["id"] for job in cut["jobs"]] == ["job-10", "job-2", "job-1", "job-0"]
    assert cut["total"] == 11


def test_queue_says_that_it_does_not_show_all(service: Any, invoke: Any) -> None:
    for number in range(10):
        service.add(f"job-{number}")
    assert "the first 4 of 10 are shown" in invoke("queue", "--limit", "4")[1]


def test_queue_by_state(busy: Any, as_json: Any, invoke: Any) -> None:
    assert {job["id"] for job in as_json("queue", "--all")["jobs"]} == {"job-0", "job-1", "job-2", "job-3"}
    assert [job["id"] for job in as_json("queue", "--state", "finished")["jobs"]] == ["job-0"]
    assert [job["id"] for job in as_json("queue", "--entity", "blue")["jobs"]] == ["job-1"]
    code, _, err = invoke("queue", "--state", "sleeping")
    assert code == 2 and "invalid state 'sleeping'" in err


def test_queue_of_nothing(service: Any, invoke: Any) -> None:
    assert invoke("queue")[1] == "fifo on v100=4 (emulated speeds): no jobs\n"


def test_json_of_a_job_has_the_promised_keys(busy: Any, as_json: Any) -> None:
    view = as_json("job", "vision")
    assert {"id", "name", "state", "reason", "allocation", "progress", "eta_s", "attempts"} <= set(view)
    assert api.JobView.model_validate(view) == busy.jobs["job-1"]


def test_job_in_words(busy: Any, invoke: Any) -> None:
    out = invoke("job", "job-1")[1]
    for text in ("vision", "running", "python a.py", "n0 (v100): 3 workers, GPUs 0,1,2", "50.0%", "500 of 1,000",
                 "12.5 steps/s", "0.25", "1h02m", "team", "blue", "emulated"):  # fmt: skip
        assert text in out, text
    assert "deadline" in invoke("job", "late")[1]


def test_unknown_job(service: Any, invoke: Any) -> None:
    for command in ("job", "why", "logs", "cancel"):
        code, out, err = invoke(command, "nope")
        assert (code, out) == (1, "")
        assert err == "error: job 'nope' not found\n"


@pytest.mark.parametrize("job", ["../service", "..", ".", "a/b", "a?state=x", "a#b", "%2e%2e"])
def test_a_job_is_one_segment_of_a_path(service: Any, invoke: Any, job: str) -> None:
    code, _, err = invoke("job", job)
    assert code in (1, 2)
    assert "not found" in err or "invalid job" in err or "does not know this request" in err
    assert all(not path.startswith("/api/v1/service") for _, path in service.asked)


def test_why_says_what_is_short_who_holds_it_and_what_helps(busy: Any, invoke: Any, as_json: Any) -> None:
    busy.why["job-2"] = api.WhyView(
        id="job-2", why="capacity", text="needs 2 GPUs; free: 1 v100", needs_gpus=2, free={"v100": 1},
        holders=[("job-1", 3)], missing_gpus=1, missing_type="v100", behind=None, details={"next_slot_s": 90},
        advice=["1 more v100 would start it", "resize job-1 to 2 workers"],
    )  # fmt: skip
    out = invoke("why", "late")[1]
    for text in ("job-2 (late) waits: too few GPUs are free", "needs    2 GPUs",
                 "free     1 v100", "short    1 GPU of v100", "job-1 (3)",
                 "- resize job-1 to 2 workers", "next slot: 1m30s", "position 1"):  # fmt: skip
        assert text in out, text
    assert api.WhyView.model_validate(as_json("why", "late")) == busy.why["job-2"]


def test_nodes(service: Any, invoke: Any, as_json: Any) -> None:
    service.nodes = [
        api.NodeView(id="n0", accelerator="v100", gpus=4, free_gpus=1, up=True, emulated=True, rack="", jobs=["job-1"]),
        api.NodeView(id="n1", accelerator="k80", gpus=2, free_gpus=0.5, up=False, emulated=False, rack="", jobs=[]),
    ]
    lines = invoke("nodes")[1].splitlines()
    assert lines[1].split() == ["n0", "v100", "(emulated)", "4", "1", "up", "job-1"]
    assert lines[2].split() == ["n1", "k80", "2", "0.5", "down"]
    assert [api.NodeView.model_validate(node) for node in as_json("nodes")] == service.nodes


def test_events_are_the_last_ones(service: Any, invoke: Any, as_json: Any) -> None:
    service.add("job-1")
    service.events = [
        api.EventView(number=n, at=1_800_000_000.0 + n, job=f"job-{n % 2}", kind="submitted", text=f"t{n}", details={})
        for n in range(1, 8)
    ]
    assert [event["number"] for event in as_json("events", "-n", "3")["events"]] == [5, 6, 7]
    assert [event["number"] for event in as_json("events", "--after", "2", "-n", "2")["events"]] == [3, 4]
    assert [event["number"] for event in as_json("events", "--job", "job-1")["events"]] == [1, 3, 5, 7]
    assert [line.split()[-1] for line in invoke("events")[1].splitlines()] == [f"t{n}" for n in range(1, 8)]


def test_policy_is_shown_and_changed(service: Any, invoke: Any, as_json: Any) -> None:
    assert "policy     fifo" in invoke("policy")[1]
    assert as_json("policy", "srtf")["policy"] == "srtf"
    assert service.policy == "srtf"
    code, _, err = invoke("policy", "fifi")
    assert (code, err) == (2, "error: 'policy': unknown policy 'fifi'; expected a known one\n")


def test_entities_keep_what_was_not_named(service: Any, invoke: Any, as_json: Any) -> None:
    assert "no teams yet" in invoke("entities")[1]
    assert as_json("entities", "blue", "--weight", "2", "--quota", "4")["quota_gpus"] == 4
    assert as_json("entities", "blue", "--weight", "3") == {
        "name": "blue", "weight": 3, "quota_gpus": 4, "policy": None, "used_gpus": 0, "jobs": 0
    }  # fmt: skip
    assert as_json("entities", "blue", "--quota", "none")["quota_gpus"] is None
    assert as_json("entities", "blue", "--policy", "fifo")["weight"] == 3
    assert as_json("entities", "blue", "--weight", "3")["policy"] == "fifo"
    assert invoke("entities")[1].splitlines()[1].split() == ["blue", "3", "-", "fifo", "0", "0"]
    assert as_json("entities", "blue", "--policy", "none")["policy"] is None
    assert invoke("entities", "red")[0] == 1
    assert invoke("entities", "--weight", "2")[0] == 2
    assert invoke("entities", "blue", "--quota", "much")[0] == 2
    for name in ("", "../blue", "blue/green"):
        code, _, err = invoke("entities", name, "--weight", "2")
        assert (code, err) == (2, f"error: invalid team '{name}'; expected a name; `trainmaster entities` lists them\n")


def test_control_characters_of_names_arguments_and_reasons_do_not_reach_the_terminal(service: Any, invoke: Any) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\r\u202e"
    request = api.JobRequest(command=["echo", evil])
    service.add("job-1", name=f"n{evil}", reason=evil, position=1, request=request)
    service.why["job-1"] = api.WhyView(
        id="job-1", why="capacity", text=evil, needs_gpus=1, free={evil: 1.0}, holders=[(evil, 1.0)], missing_gpus=1,
        missing_type=evil, behind=evil, details={evil: evil}, advice=[evil],
    )  # fmt: skip
    service.events = [api.EventView(number=1, at=1.0, job=evil, kind=evil, text=evil, details={})]
    for command in (["queue"], ["job", "job-1"], ["why", "job-1"], ["events"], ["pause", "job-1"]):
        code, out, err = invoke(*command)
        assert code == 0, command
        for text in (out, err):
            assert not any(letter in text for letter in "\x1b\x07\r\u202e"), command
    assert "\\x1b" in invoke("job", "job-1")[1]


def test_markup_in_names_is_text(service: Any, invoke: Any) -> None:
    service.add("job-1", name="[red]x[/red]", reason="[bold]")
    out = invoke("queue")[1]
    assert "[red]x[/red]" in out and "[bold]" in out


def test_control_commands(busy: Any, invoke: Any, as_json: Any) -> None:
    assert invoke("pause", "job-1")[1] == "job-1 (vision): paused (running), workers 1..4\n"
    assert as_json("resume", "job-1")["state"] == "pending"
    assert busy.jobs["job-1"].state == "pending"
    assert as_json("resize", "vision", "2..3")["request"]["workers"] == {"min": 2, "max": 3}
    assert as_json("resize", "vision", "3")["request"]["workers"] == {"min": 3, "max": 3}
    assert invoke("resize", "vision", "0")[0] == 2
    assert invoke("resize", "vision", "x")[0] == 2


def test_cancel_goes_on_after_a_refusal(busy: Any, invoke: Any) -> None:
    code, out, err = invoke("cancel", "job-2", "job-0", "nope", "job-3")
    assert code == 1
    assert [line.split(":")[0] for line in out.splitlines()] == ["job-2 (late)", "job-3"]
    assert err.splitlines() == ["error: job-0 is finished. Nothing to do.", "error: job 'nope' not found"]
    assert busy.jobs["job-3"].state == "cancelled"


def test_one_of_several_as_json_is_a_list(busy: Any, invoke: Any) -> None:
    assert [view["id"] for view in json.loads(invoke("cancel", "job-2", "job-3", "-o", "json")[1])] == [
        "job-2",
        "job-3",
    ]


def test_a_silent_job_shows_for_how_long(service: Any, invoke: Any) -> None:
    told = api.ProgressView(work_done=50, work_total=600, fraction=50 / 600, rate=9.9, loss=None, age_s=40.0)
    service.add("job-1", **{**RUNNING, "progress": told})
    assert "(50 of 600), 9.9 steps/s, no report for 40s" in invoke("job", "job-1")[1]
    assert "no report for 40s; on n0" in invoke("queue")[1]


def test_attempts_beyond_those_that_may_fail_read_plainly(service: Any, invoke: Any) -> None:
    service.add("job-1", **{**RUNNING, "attempts": 6})
    assert "6, 3 may fail" in invoke("job", "job-1")[1]
