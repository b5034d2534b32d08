"""The control plane through its routes: what is accepted is kept, what fails changes nothing, requests act once."""

from __future__ import annotations

import itertools
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from service_bench import ANN_TOKEN, BOB_TOKEN, OPERATOR_TOKEN, Bench, HandClock

from trainmaster.dst.control_plane.inline_asgi import Call, exchange
from trainmaster.engine.engine import HANDLERS, Engine
from trainmaster.engine.persistence import readable_ends
from trainmaster.engine.ports import Commit, EndedFilter, StoreError
from trainmaster.jobspec.model import JobRequest
from trainmaster.model import event as ev
from trainmaster.model.command import Launch, Stop
from trainmaster.model.errors import InputError, TrainmasterError
from trainmaster.model.job import JobId, JobSpec
from trainmaster.model.plan import Plan
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies.registry import create
from trainmaster.service.api.problems import Forbidden
from trainmaster.service.control import requests as ask
from trainmaster.service.control.specs import Fitting
from trainmaster.service.local.tokens import OPERATOR, USER, Principal
from trainmaster.stores.memory import MemoryStore
from trainmaster.stores.sqlite import SqliteStore


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, SqliteStore(tmp_path / "store.db", durable=False))


def test_a_job_from_submission_to_its_end(bench: Bench) -> None:
    job = bench.submit(name="first", workers={"min": 2, "max": 2}, steps=10, steps_per_s={"v100": 2})
    bench.pass_s(1)
    view = bench.get(f"/jobs/{job}")
    assert view["state"] == "running"
    assert view["allocation"][0]["workers"] == 2
    assert view["eta_s"] == pytest.approx(4.0, rel=1e-4)  # a learned speed is all but the declared one
    assert view["eta"]["p05_s"] <= view["eta"]["p50_s"] <= view["eta"]["p95_s"]
    assert view["progress"]["fraction"] == 0  # nothing was reported yet
    bench.pass_s(10)
    view = bench.get("/jobs/first")
    assert (view["state"], view["exit"], view["attempts"]) == ("finished", "exit 0", 1)
    kinds = [event["kind"] for event in bench.get("/events", query=f"job={job}")["events"]]
    assert kinds == ["submitted", "launch", "started", "exited", "finished"]


def test_a_request_that_is_repeated_acts_once(bench: Bench) -> None:
    body = {"command": ["train"], "request_id": "once", "array": 3}
    first = bench.call("POST", "/jobs", body).json()
    assert first["ids"] == ["job-1", "job-2", "job-3"]
    assert bench.call("POST", "/jobs", body).json() == first
    bench.start()
    assert bench.call("POST", "/jobs", body).json() == first, "over a restart too"
    twice = bench.calls([Call("POST", "/api/v1/jobs", {**body, "request_id": "two"}) for _ in range(2)])
    assert twice[0].json() == twice[1].json()
    assert bench.get("/jobs")["total"] == 6
    other = bench.call("POST", "/jobs", body, token=ANN_TOKEN).json()
    assert other["ids"] == ["job-7", "job-8", "job-9"], "ids of requests are each client's own"


def test_many_requests_share_one_commit(bench: Bench) -> None:
    before = bench.plane.tally.batches
    replies = bench.calls([Call("POST", "/api/v1/jobs", {"command": ["train"]}) for _ in range(20)])
    assert [reply.status for reply in replies] == [201] * 20
    assert len({reply.json()["id"] for reply in replies}) == 20
    assert bench.plane.tally.batches == before + 1


def test_one_bad_request_does_not_spoil_the_batch(bench: Bench) -> None:
    good = Call("POST", "/api/v1/jobs", {"command": ["train"]})
    bad = Call("POST", "/api/v1/jobs", {"command": ["train"], "workers": {"min": 9, "max": 9}})
    statuses = [reply.status for reply in bench.calls([good, bad, good])]
    assert statuses == [201, 422, 201]
    assert bench.get("/jobs")["total"] == 2


@pytest.mark.parametrize(
    "handler", [ev.JobSubmitted, ev.JobCancelled, ev.Started, ev.Progressed, ev.Exited, ev.Inventory]
)
def test_what_the_engine_cannot_take_is_set_aside_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, handler: type
) -> None:
    victim, other = bench.submit(name="victim"), bench.submit(name="other")
    whole = HANDLERS[handler]

    def fail(engine: Engine, event: Any) -> None:
        named = event.spec.name if isinstance(event, ev.JobSubmitted) else getattr(event, "job_id", victim)
        if named in (victim, "victim"):
            raise OverflowError("a number of 401 digits")
        whole(engine, event)

    monkeypatch.setitem(HANDLERS, handler, fail)
    bad: list[ev.Event] = {
        ev.Started: [ev.Started(JobId(victim), 1, 0.0, 0)],
        ev.Progressed: [ev.Progressed(JobId(victim), 1, 5.0, 0)],
        ev.Exited: [ev.Exited(JobId(victim), 1, 0, 5.0)],
        ev.Inventory: [ev.Inventory((), 0, frozenset(range(4)))],
    }.get(handler, [])
    asker = Principal("owner", OPERATOR)
    requests: list[Any] = [ask.Submit(JobRequest(command=["train"], name="bystander"), asker)]
    if handler is ev.JobSubmitted:
        requests.insert(0, ask.Submit(JobRequest(command=["train"], name="victim"), asker))
    if handler is ev.JobCancelled:
        requests.insert(0, ask.Act(victim, "cancel", asker))
    outcomes = bench.plane.batch(requests, bad)
    assert outcomes[-1]["id"] == "job-3", "the others of the batch are taken, under the ids they would have had"
    if len(outcomes) == 2:
        assert isinstance(outcomes[0], TrainmasterError)
        assert "401" not in str(outcomes[0]), "the inside of a fault is for the log"
    assert bench.plane.tally.set_aside == 1
    assert bench.get(f"/jobs/{other}")["state"] in ("running", "pending")
    monkeypatch.undo()
    bench.start()
    bench.pass_s(1)
    assert {view["name"] for view in bench.get("/jobs")["jobs"]} == {"victim", "other", "bystander"}


def test_a_request_that_fails_half_way_stages_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*_: Any) -> None:
        if next(checks, False):
            raise ZeroDivisionError

    good = Call("POST", "/api/v1/jobs", {"command": ["train"]})
    array = Call("POST", "/api/v1/jobs", {"command": ["train"], "array": 3, "request_id": "r"})
    checks = iter([False, False, False, True])  # the third of the array
    monkeypatch.setattr(Fitting, "check", check)
    statuses = [reply.status for reply in bench.calls([good, array, good])]
    assert statuses == [201, 500, 201]
    assert [view["id"] for view in bench.get("/jobs")["jobs"]] == ["job-1", "job-2"]


def test_nobody_acts_on_a_job_of_another_that_is_just_being_submitted(bench: Bench) -> None:
    ann, bob = Principal("ann", USER), Principal("bob", USER)
    submit = ask.Submit(JobRequest(command=["train"], name="anns"), ann)
    outcomes = bench.plane.batch([submit, ask.Act("anns", "cancel", bob), ask.Act("anns", "pause", ann)])
    assert outcomes[0] == {"id": "job-1", "ids": ["job-1"]}
    assert isinstance(outcomes[1], Forbidden)
    assert outcomes[2]["state"] == "paused"


def test_users_submit_for_the_teams_that_they_are_bound_to(bench: Bench) -> None:
    ann = Principal("ann", USER, teams=("vision", "speech"))
    teams = (None, "speech", "robots")
    first, second, third = bench.plane.batch(
        [ask.Submit(JobRequest(command=["train"], entity=team), ann) for team in teams]
    )
    assert bench.get(f"/jobs/{first['id']}")["request"]["entity"] == "vision"
    assert bench.get(f"/jobs/{second['id']}")["request"]["entity"] == "speech"
    assert isinstance(third, Forbidden)


def test_an_environment_is_shown_to_its_user_and_to_operators_alone(bench: Bench) -> None:
    body = {"command": ["train"], "env": {"API_KEY": "s3cret"}}
    job = bench.call("POST", "/jobs", body, token=ANN_TOKEN).json()["id"]
    for token, shown in ((ANN_TOKEN, "s3cret"), (OPERATOR_TOKEN, "s3cret"), (BOB_TOKEN, "(hidden)")):
        one = bench.call("GET", f"/jobs/{job}", token=token).json()
        listed = bench.call("GET", "/jobs", token=token).json()["jobs"][0]
        assert one["request"]["env"] == listed["request"]["env"] == {"API_KEY": shown}
        assert "s3cret" not in bench.call("GET", "/situation", token=token).body.decode()


class Faulty(MemoryStore):
    """Fails when told: before it wrote, or after."""

    fault: str | None = None
    reads_fail = False

    def commit(self, commit: Commit) -> None:
        fault, self.fault = self.fault, None
        if fault == "before":
            raise StoreError("database or disk is full")
        super().commit(commit)
        if fault == "after":
            raise StoreError("disk I/O error")

    def load_active(self) -> Any:
        if self.reads_fail:
            raise StoreError("unable to open database file")
        return super().load_active()


def test_a_full_store_refuses_and_keeps_what_was_accepted(tmp_path: Path) -> None:
    store = Faulty()
    bench = Bench(tmp_path, store)
    kept = bench.submit(name="kept")
    store.fault = "before"
    reply = bench.call("POST", "/jobs", {"command": ["train"], "name": "refused"})
    assert reply.status == 503
    assert "full" in reply.json()["what"]
    assert "nothing accepted before is lost" in reply.json()["remedy"]
    assert [job["id"] for job in bench.get("/jobs")["jobs"]] == [kept]
    again = bench.submit(name="refused")
    assert again == "job-2", "the refused one has used up no id"


def test_health_is_bad_while_the_store_takes_no_commit_and_good_again_without_a_submission(tmp_path: Path) -> None:
    store = Faulty()
    bench = Bench(tmp_path, store)

    def health() -> int:
        return exchange(bench.app, "", [Call("GET", "/healthz")], lambda asked: bench.plane.batch(asked))[0].status

    assert health() == 200
    store.fault = "before"
    assert bench.call("POST", "/jobs", {"command": ["train"]}).status == 503
    assert health() == 503
    bench.clock.ms += 2_000
    store.fault = "before"
    assert health() == 503, "it was tried again in vain"
    bench.clock.ms += 2_000
    assert bench.plane.next_wake_ms <= bench.plane.now_ms, "it is tried again even if nobody asks"
    assert health() == 200


def test_a_commit_of_which_nobody_knows_is_not_made_twice(tmp_path: Path) -> None:
    store = Faulty()
    bench = Bench(tmp_path, store)
    store.fault = "after"
    body = {"command": ["train"], "request_id": "r"}
    assert bench.call("POST", "/jobs", body).status == 503
    assert bench.call("POST", "/jobs", body).json()["ids"] == ["job-1"]
    assert bench.get("/jobs")["total"] == 1


def test_reports_lost_with_a_failed_commit_are_made_good(tmp_path: Path) -> None:
    store = Faulty()
    bench = Bench(tmp_path, store)
    job = bench.submit(steps=10)
    bench.pass_s(5)
    store.fault = "before"
    bench.pass_s(30)
    assert bench.state(job) == "finished"
    assert bench.plane.tally.store_faults == 1


def test_a_store_that_can_be_read_and_refuses_commits_is_tried_once_a_second(tmp_path: Path) -> None:
    store = Faulty()
    bench = Bench(tmp_path, store)
    bench.submit(steps=10)
    for _ in range(5):
        store.fault = "before"
        bench.plane.batch([], [ev.NodeUsed(0, gpus=1)])
        assert bench.plane.next_wake_ms == bench.plane.now_ms + 1_000
        bench.clock.ms = bench.clock.ms + 1_000


@pytest.mark.parametrize("stays_away", [False, True])
@pytest.mark.parametrize("fault", ["before", "after"])
def test_reports_that_nobody_repeats_are_taken_when_the_store_is_back(
    tmp_path: Path, fault: str, stays_away: bool
) -> None:
    """Backends tell once what they find (a gang of pods) and what nodes lose or have: no inventory lists it."""
    store = Faulty()
    bench = Bench(tmp_path, store)
    found = ev.JobSubmitted(JobSpec(JobId("found"), 0, workers_min=4, workers_max=4))
    store.fault, store.reads_fail = fault, stays_away
    bench.plane.batch([], [found, ev.NodeUsed(0, gpus=1)])
    bench.plane.batch([], [ev.NodeLost(0, 0, False, 0)])
    store.reads_fail = False
    bench.clock.ms += 2_000
    bench.plane.batch([])
    engine = bench.plane.live
    assert "found" in engine.columns.job_index_of
    assert engine.used == {0: (1, 0, 0)}
    assert not engine.up[0]


def test_a_wall_clock_that_is_set_while_the_service_runs_moves_no_time_of_the_engine(tmp_path: Path) -> None:
    """Leases are counted in it: after a jump all of them would seem to have run out."""

    class SetClock(HandClock):
        ahead_ms = 0

        def wall_ms(self) -> int:
            return super().wall_ms() + self.ahead_ms

    store, clock = Faulty(), SetClock()
    bench = Bench(tmp_path, store, clock=clock)
    bench.pass_s(10)
    clock.ahead_ms = 600_000
    store.fault = "before"
    bench.call("POST", "/jobs", {"command": ["train"]})
    assert bench.plane.tally.store_faults == 1
    assert bench.plane.now_ms == 10_000


def test_a_store_that_stays_away(tmp_path: Path) -> None:
    store = Faulty()
    bench = Bench(tmp_path, store)
    job = bench.submit(steps=10)
    store.fault, store.reads_fail = "before", True
    assert bench.call("POST", f"/jobs/{job}/pause").status == 503
    assert bench.call("GET", f"/jobs/{job}").status == 503
    health = bench.calls([Call("GET", "/healthz")])[0]
    assert (health.status, health.json()["status"]) == (503, "store unavailable")
    metrics = bench.calls([Call("GET", "/metrics")])[0]
    assert b"trainmaster_store_available 0.0" in metrics.body
    store.reads_fail = False
    bench.pass_s(40)
    assert bench.state(job) == "finished"
    assert bench.calls([Call("GET", "/healthz")])[0].status == 200


def test_a_restart_goes_on_with_everything(bench: Bench) -> None:
    running = bench.submit(steps=100, workers={"min": 3, "max": 3})
    waiting = bench.submit(steps=10, workers={"min": 2, "max": 2})
    dependent = bench.submit(steps=10, after=[waiting])
    bench.call("PUT", "/entities/red", {"weight": 2, "quota_gpus": 1, "policy": "fifo"})
    bench.call("PUT", "/policy", {"policy": "fifo:backfill=true"})
    bench.pass_s(10)
    bench.performed.clear()
    bench.start()
    assert bench.plane.policy_name == "fifo:backfill=true"
    assert not bench.performed, "nothing was pending"
    states = {job["id"]: (job["state"], job["why"]) for job in bench.get("/jobs")["jobs"]}
    assert states == {
        running: ("running", ""),
        waiting: ("pending", "capacity"),
        dependent: ("pending", "dependency"),
    }
    red = {"name": "red", "weight": 2.0, "quota_gpus": 1.0, "policy": "fifo", "used_gpus": 0.0, "jobs": 0}
    assert bench.get("/entities") == [red]
    bench.pass_s(300)
    assert [bench.state(job) for job in (running, waiting, dependent)] == ["finished"] * 3


def test_fifo_inside_a_team_while_the_service_runs_and_after_a_restart(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db", durable=False)
    bench = Bench(tmp_path, store, "v100=1", "gavel-hierarchical:patience_s=0", round_ms=60_000)
    fields = {"entity": "red", "steps": 3000, "steps_per_s": {"v100": 1}, "preemptible": True}
    first, second = bench.submit(**fields), bench.submit(**fields)

    def rounds_of() -> tuple[int, int]:
        """Of twenty rounds, those in which each of the two runs."""
        running: list[str] = []
        for _ in range(20):
            bench.pass_s(60)
            running += [job for job in (first, second) if bench.state(job) == "running"]
        return running.count(first), running.count(second)

    bench.pass_s(30)
    assert min(rounds_of()) >= 9, "fairness, unless it is said"
    assert bench.call("PUT", "/entities/red", {"policy": "fifo"}).status == 200
    bench.start()
    assert rounds_of()[0] >= 19
    assert bench.call("PUT", "/entities/red", {"policy": "sjf"}).status == 422


@pytest.mark.parametrize("damage", ["not json", '{"spec": {}}', "[1]", '"spec"'])
def test_a_stored_job_that_cannot_be_read_is_set_aside_alone(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "store.db"
    bench = Bench(tmp_path, SqliteStore(path))
    good, bad = bench.submit(steps=10), bench.submit(steps=10_000)
    bench.pass_s(2)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE job SET record = ? WHERE id = ?", (damage, bad))
    connection.close()
    for _ in range(2):  # also at the next start
        bench.start()
        assert bench.get("/service")["quarantined"] == [bad]
        assert [job["id"] for job in bench.get("/jobs")["jobs"]] == [good]
    bench.pass_s(30)
    assert bench.state(good) == "finished"
    assert any(isinstance(sent, Stop) and sent.job_id == bad for sent in bench.performed), "what runs of it is stopped"
    assert bench.submit() not in (good, bad)


@pytest.mark.parametrize(
    "damage", ["not json", '{"spec": {}}', "[1]", '"spec"', '{"spec": {"id": "job-2"}, "phase": 6}']
)
def test_an_ended_job_that_cannot_be_read_hides_no_other(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "store.db"
    bench = Bench(tmp_path, SqliteStore(path))
    good, bad = bench.submit(steps=10), bench.submit(steps=10)
    bench.pass_s(60)
    assert [bench.state(job) for job in (good, bad)] == ["finished"] * 2
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE ended SET record = ? WHERE id = ?", (damage, bad))
        connection.execute("UPDATE log SET details = ?", (damage,))
    connection.close()
    bench.start()
    for _ in range(2):
        assert [job["id"] for job in bench.get("/jobs")["jobs"]] == [good]
        assert bench.call("GET", f"/jobs/{bad}").status == 409
    assert bench.get("/service")["quarantined"] == [bad]
    assert bench.plane.tally.set_aside == 1, "told once"
    assert len(bench.get("/events")["events"]) > 4
    assert [end.spec.id for end in readable_ends(bench.store.latest_ended(9, EndedFilter()))] == [good]


def test_pending_commands_are_sent_first(bench: Bench) -> None:
    bench.world.perform = lambda command: None  # type: ignore[method-assign] # lost on the way
    bench.submit()
    launch = bench.performed[-1]
    assert isinstance(launch, Launch)
    bench.performed.clear()
    bench.start()
    assert bench.performed == [launch]


def test_the_policy_changes_while_jobs_run(bench: Bench) -> None:
    jobs = [bench.submit(steps=50, workers={"min": 2, "max": 2}) for _ in range(4)]
    bench.pass_s(5)
    running = [job for job in jobs if bench.state(job) == "running"]
    for policy in ("gavel-max-min", "oasis", "deadline", "srtf", "fifo"):
        assert bench.call("PUT", "/policy", {"policy": policy}).json()["policy"] == policy
    assert [job for job in jobs if bench.state(job) == "running"] == running
    bench.pass_s(2000)
    assert [bench.state(job) for job in jobs] == ["finished"] * 4
    assert bench.plane.tally.policy_faults == 0
    assert bench.call("PUT", "/policy", {"policy": "fifoo"}).status == 422
    assert bench.call("PUT", "/policy", {"policy": "fifo"}, token=ANN_TOKEN).status == 403


def test_another_policy_at_the_start_is_a_change_of_policy(bench: Bench) -> None:
    bench.submit()
    bench.start(force_policy="srtf")
    bench.pass_s(1)
    assert bench.get("/service")["policy"] == "srtf"
    assert [e["text"] for e in bench.get("/events")["events"] if e["kind"] == "policy"] == [
        "policy is now srtf (was fifo)"
    ]
    bench.start()
    assert bench.plane.policy_name == "srtf"


def test_a_policy_chosen_at_run_time_survives_a_change_of_leader(bench: Bench) -> None:
    """Every replica was started with the same `--policy`; another one is the operator's word, and counts."""
    option: dict[str, Any] = {"force_policy": "srtf", "keep_policy": True}
    bench.start(**option)
    bench.pass_s(1)
    bench.call("PUT", "/policy", {"policy": "las"})
    for _ in range(2):
        bench.start(**option)
        bench.pass_s(1)
        assert bench.plane.policy_name == "las"
    bench.start(force_policy="fifo", keep_policy=True)
    bench.pass_s(1)
    assert bench.plane.policy_name == "fifo"


class Broken:
    def decide(self, view: Snapshot) -> Plan:
        raise ZeroDivisionError("of no use")


def test_a_policy_that_fails_does_not_stop_the_service(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.start(policies=lambda name: Broken() if name == "broken" else create(name))
    bench.call("PUT", "/policy", {"policy": "broken"})
    job = bench.submit(steps=5)
    bench.pass_s(20)
    assert bench.state(job) == "finished"
    assert bench.plane.tally.policy_faults > 0
    assert any("of no use" in e["text"] for e in bench.get("/events")["events"] if e["kind"] == "note")


def test_users_steer_their_own_jobs_only(bench: Bench) -> None:
    job = bench.submit(ANN_TOKEN)
    for action in ("cancel", "pause", "resume"):
        assert bench.call("POST", f"/jobs/{job}/{action}", token=BOB_TOKEN).status == 403
    assert bench.call("POST", f"/jobs/{job}/resize", {"workers": {"min": 1, "max": 1}}, token=BOB_TOKEN).status == 403
    assert bench.call("POST", f"/jobs/{job}/pause", token=ANN_TOKEN).status == 200
    assert bench.call("POST", f"/jobs/{job}/cancel").status == 200, "an operator may"
    bench.pass_s(1)
    assert bench.call("POST", f"/jobs/{job}/cancel", token=BOB_TOKEN).status == 403
    assert bench.call("PUT", "/entities/red", {"weight": 2}, token=ANN_TOKEN).status == 403


def test_a_job_between_two_sizes_or_about_to_stop_says_so(bench: Bench) -> None:
    """The commands are under way: nothing of the world is heard meanwhile."""
    job = bench.submit(steps=1e6, workers={"min": 1, "max": 2})
    bench.pass_s(10)
    assert bench.get(f"/jobs/{job}/why")["text"] == "it does not wait: it is running"
    view = bench.call("POST", f"/jobs/{job}/resize", {"workers": {"min": 1, "max": 1}}).json()
    assert (view["state"], view["phase"], view["why"]) == ("running", "resizing", "resizing")
    assert view["reason"] == bench.get(f"/jobs/{job}/why")["text"] == "is being resized"
    bench.pass_s(10)
    view = bench.call("POST", f"/jobs/{job}/cancel").json()
    assert (view["state"], view["phase"], view["why"]) == ("running", "stopping", "stopping")
    assert view["reason"] == "is being stopped"


def test_pause_resume_resize_cancel(bench: Bench) -> None:
    job = bench.submit(steps=1000, workers={"min": 1, "max": 2})
    bench.pass_s(10)
    assert bench.call("POST", f"/jobs/{job}/pause").json()["phase"] in ("stopping", "paused")
    bench.pass_s(2)
    assert bench.get(f"/jobs/{job}")["state"] == "paused"
    bench.call("POST", f"/jobs/{job}/resume")
    bench.pass_s(2)
    assert bench.get(f"/jobs/{job}")["state"] == "running"
    view = bench.call("POST", f"/jobs/{job}/resize", {"workers": {"min": 3, "max": 4}}).json()
    bench.pass_s(2)
    assert bench.get(f"/jobs/{job}")["allocation"][0]["workers"] >= 3, view
    assert bench.call("POST", f"/jobs/{job}/resize", {"workers": {"min": 5, "max": 6}}).status == 422
    bench.call("POST", f"/jobs/{job}/cancel")
    bench.pass_s(2)
    assert bench.state(job) == "cancelled"
    assert bench.call("POST", f"/jobs/{job}/cancel").status == 200, "it is so already"
    assert bench.call("POST", f"/jobs/{job}/resume").status == 409
    assert isinstance(bench.performed[-1], Stop)


def test_why_names_what_is_short_who_holds_it_and_what_would_help(bench: Bench) -> None:
    holder = bench.submit(steps=1000, workers={"min": 3, "max": 3})
    waits = bench.submit(workers={"min": 3, "max": 3})
    behind = bench.submit()
    bench.pass_s(1)
    why = bench.get(f"/jobs/{waits}/why")
    assert (why["why"], why["needs_gpus"], why["missing_gpus"], why["missing_type"]) == ("capacity", 3.0, 2.0, "v100")
    assert why["holders"] == [[holder, 3.0]]
    assert why["advice"] == ["resize it: there is room for 1 worker now", f"wait for {holder} to end, or pause it"]
    assert bench.get(f"/jobs/{behind}/why")["behind"] == waits
    assert bench.get(f"/jobs/{behind}")["position"] == 2
    assert "does not wait" in bench.get(f"/jobs/{holder}/why")["text"]


def test_a_snapshot_is_refused_where_nothing_runs(bench: Bench) -> None:
    refused = bench.call("POST", "/jobs", {"command": ["true"], "workdir": "/", "snapshot": True})
    assert (refused.status, refused.json()["where"]) == (422, "snapshot")


def test_a_name_that_is_none_is_refused_in_words(bench: Bench) -> None:
    refused = bench.call("POST", "/jobs", {"command": ["true"], "name": "Bad Name!"})
    assert refused.status == 422
    assert refused.json()["what"] == "invalid value 'Bad Name!'" and "letters, digits" in refused.json()["expected"]


def test_why_of_an_elastic_job_names_the_size_it_waits_for_and_the_one_that_would_fit(bench: Bench) -> None:
    bench.submit(steps=1000, workers={"min": 2, "max": 2})
    waits = bench.submit(workers={"min": 1, "max": 4})
    bench.pass_s(1)
    why = bench.get(f"/jobs/{waits}/why")
    assert (why["why"], why["needs_gpus"], why["missing_gpus"]) == ("capacity", 4.0, 2.0)
    assert why["advice"][0] == "resize it: there is room for 2 workers now"


def test_pages_and_filters(bench: Bench) -> None:
    for k in range(7):
        bench.submit(name=f"n{k}", steps=5 if k < 3 else 1e6, entity="red" if k % 2 else None)
    bench.pass_s(20)
    listed: list[str] = []
    cursor = None
    for _ in itertools.count():
        page = bench.get("/jobs", query="limit=2" + (f"&cursor={cursor}" if cursor else ""))
        assert page["total"] == 7
        listed += [job["id"] for job in page["jobs"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert listed == [f"job-{k}" for k in range(1, 8)]

    def ids(query: str) -> list[str]:
        return [job["id"] for job in bench.get("/jobs", query=query)["jobs"]]

    assert ids("state=finished") == ["job-1", "job-2", "job-3"]
    assert ids("state=active") == ["job-4", "job-5", "job-6", "job-7"]
    assert ids("state=finished&state=running&entity=red") == ["job-2", "job-4", "job-6"]
    assert ids("name=n2") == ["job-3"]
    assert bench.call("GET", "/jobs", query="state=odd").status == 422
    assert bench.call("GET", "/jobs", query="cursor=x").status == 422


def test_names(bench: Bench) -> None:
    first, second = bench.submit(name="same"), bench.submit(name="same")
    reply = bench.call("GET", "/jobs/same")
    assert reply.status == 409
    assert first in reply.json()["remedy"]
    assert bench.get(f"/jobs/{second}")["name"] == "same"
    assert bench.call("GET", "/jobs/nobody").status == 404
    assert bench.call("POST", "/jobs", {"command": ["x"], "name": "job-7"}).status == 422
    assert bench.call("POST", "/jobs", {"command": ["x"], "after": ["nobody"]}).status == 404


def test_an_active_job_is_preferred_to_ended_ones_of_its_name(bench: Bench) -> None:
    for _ in range(3):
        bench.call("POST", f"/jobs/{bench.submit(name='same')}/cancel")
        bench.pass_s(1)
    assert bench.call("GET", "/jobs/same").json()["what"] == "3 jobs are called 'same'"
    active = bench.submit(name="same")
    assert bench.get("/jobs/same")["id"] == active


def test_history_is_pruned(tmp_path: Path) -> None:
    from trainmaster.service.control.control_plane import Retention

    bench = Bench(tmp_path)
    bench.start(retention=Retention(days=1, ended_jobs=100, log_lines=1000))
    old = bench.submit(steps=5)
    bench.pass_s(10)
    assert bench.state(old) == "finished"
    bench.pass_s(2 * 86_400)
    assert bench.call("GET", f"/jobs/{old}").status == 404


def test_other_nodes_are_refused_or_taken(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db", durable=False)
    bench = Bench(tmp_path, store, nodes="v100=4x4")
    running = bench.submit(steps=100)
    waiting = bench.submit(steps=10, workers={"min": 4, "max": 4})
    bench.pass_s(10)
    with pytest.raises(InputError, match="--reset-nodes"):
        Bench(tmp_path, store, nodes="v100=4x2")
    other = Bench(tmp_path, store, nodes="k80=4x2", clock=bench.clock, reset=True)
    other.pass_s(400)
    assert [other.state(job) for job in (running, waiting)] == ["finished", "finished"]
    assert other.get(f"/jobs/{running}")["attempts"] == 2
