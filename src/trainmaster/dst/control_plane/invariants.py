"""What must hold of the whole service, besides what must hold of the engine: requests, dependencies, quotas, history.

It believes only what was committed, and what the simulated world really does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from trainmaster.dst.control_plane.inline_asgi import Reply
from trainmaster.dst.control_plane.scenario import Action
from trainmaster.dst.engine.faults import Faults
from trainmaster.dst.engine.invariants import Checker, Violation
from trainmaster.engine.persistence import ended_from_record
from trainmaster.engine.ports import Commit
from trainmaster.model.codec import spec_from_json
from trainmaster.model.command import Command, Launch
from trainmaster.model.job import STATE_OF, JobId, Phase
from trainmaster.sim.backend import SimulatedBackend


class ServiceChecker(Checker):
    def __init__(self, world: SimulatedBackend, faults: Faults, counting: bool) -> None:
        super().__init__(world, (), counting)
        self.faults = faults
        self.notes: list[str] = []
        self.requests: dict[str, Action] = {}
        """Submissions by name, once they were asked for."""
        self.ids: dict[str, list[str]] = {}
        """Jobs by the name of the submission that made them."""
        self.steered: dict[str, list[Action]] = {}
        """What was asked of jobs by name, perhaps in the same batch that made them."""
        self.answers: dict[str, list[str]] = {}
        self.steady_quotas: dict[str, int] = {}
        """Quotas (thousandths) of teams whose quota was never lowered."""
        self._quotas: dict[str, int | None] = {}

    @property
    def all_over(self) -> bool:
        return len(self.ended) == len(self.specs) and set(self.answers) == set(self.requests)

    # -- what users do -------------------------------------------------------------------------------

    def asked(self, action: Action) -> None:
        if action.kind == "submit":
            self.requests.setdefault(action.name, action)
        elif action.kind in ("cancel", "resize"):
            self.steered.setdefault(action.target, []).append(action)
            for job_id in self.ids.get(action.target, ()):
                self._steer(JobId(job_id), action)

    def _steer(self, job_id: JobId, action: Action) -> None:
        if action.kind == "cancel":
            self.cancelled.add(job_id)
        else:
            self.ranges[job_id].append((action.body["workers"]["min"], action.body["workers"]["max"]))

    def granted(self, action: Action, reply: Reply) -> None:
        if action.kind != "submit":
            return
        ids = reply.json()["ids"]
        before = self.answers.setdefault(action.name, ids)
        if before != ids:
            raise Violation(f"request {action.name} was answered {before}, then {ids}")
        if ids != self.ids.get(action.name):
            raise Violation(f"request {action.name} was answered {ids}, but {self.ids.get(action.name)} is kept")

    # -- what is kept --------------------------------------------------------------------------------

    def committed(self, commit: Commit) -> None:
        for record in (*commit.jobs.values(), *commit.ended.values()):
            if record is not None and record["spec"]["id"] not in self.specs:
                self._enter(record["spec"])
        for record in commit.ended.values():
            end = ended_from_record(record)
            self.note_end(end, self.faults.blamed.get(end.spec.id, 0))
        self.notes += [entry.text for entry in commit.log if entry.kind == "note"]
        self._note_quotas(commit.meta["quotas"])

    def _enter(self, data: dict[str, Any]) -> None:
        spec = spec_from_json(data)
        self.specs[spec.id] = spec
        self.ranges[spec.id] = [(spec.workers_min, spec.workers_max)]
        self.accepted.add(spec.id)
        name = spec.payload["wishes"]["name"]
        self.ids.setdefault(name, []).append(spec.id)
        self.ids[name].sort(key=lambda job_id: int(job_id.rpartition("-")[2]))
        if spec.name != name:
            self.ids[spec.name] = [spec.id]
        for action in self.steered.get(spec.name, ()):
            self._steer(spec.id, action)
        wanted = self.requests[name].body.get("array") or 1
        if len(self.ids[name]) > wanted:
            raise Violation(f"request {name} made {len(self.ids[name])} jobs, not {wanted}", spec.id)

    def _note_quotas(self, quotas: dict[str, int]) -> None:
        for entity in {*quotas, *self._quotas}:
            before, now = self._quotas.get(entity), quotas.get(entity)
            fresh = entity not in self._quotas and not any(spec.entity == entity for spec in self.specs.values())
            raised = before is not None and (now is None or now >= before)
            if now is not None and (fresh or (raised and entity in self.steady_quotas)):
                self.steady_quotas[entity] = now
            elif now != before:
                self.steady_quotas.pop(entity, None)
            self._quotas[entity] = now

    # -- what is done --------------------------------------------------------------------------------

    def check_command(self, command: Command) -> None:
        super().check_command(command)
        if isinstance(command, Launch):
            for job_id in command.spec.after:
                end = self.ended.get(job_id)
                if end is None or end.phase != Phase.FINISHED:
                    how = "active" if end is None else end.phase.name.lower()
                    raise Violation(f"{command.job_id} starts although {job_id} is {how}", command.job_id)

    def check(self, engine: Any) -> None:
        super().check(engine)
        used: Counter[str] = Counter()
        for attempt in (*self.backend.running.values(), *self.backend.zombies):
            used[attempt.spec.entity] += attempt.allocation.gpu_milli
        for entity, quota_milli in self.steady_quotas.items():
            if used[entity] > quota_milli:
                raise Violation(f"team {entity} uses {used[entity]} of {quota_milli} GPU milli")

    def note_end(self, end: Any, blamed: int) -> None:
        super().note_end(end, blamed)
        if end.phase == Phase.REJECTED and end.spec.after and end.rejection.why.name == "DEPENDENCY":
            bad = [job_id for job_id in end.spec.after if job_id in self.ended]
            if not any(self.ended[job_id].phase != Phase.FINISHED for job_id in bad):
                raise Violation(f"{end.spec.id} was rejected although what it waits for may finish", end.spec.id)

    def check_history(self, read: Callable[[str, str], Any]) -> None:
        """At the end the interface tells of every job and how it ended, once, and so does the log."""
        listed: dict[str, str] = {}
        cursor: str | None = None
        while True:
            page = read("/api/v1/jobs", "limit=3" + (f"&cursor={cursor}" if cursor else ""))
            for job in page["jobs"]:
                if job["id"] in listed:
                    raise Violation(f"{job['id']} is on two pages", job["id"])
                listed[job["id"]] = job["state"]
            cursor = page["cursor"]
            if cursor is None:
                break
        expected = {job_id: STATE_OF[end.phase].value for job_id, end in self.ended.items()}
        if listed != expected or page["total"] != len(expected):
            raise Violation(f"the interface tells {listed}, not {expected}")
        told: Counter[str] = Counter()
        after = 0
        while True:
            events = read("/api/v1/events", f"limit=50&after={after}")
            for event in events["events"]:
                if event["number"] <= after:
                    raise Violation(f"event {event['number']} comes after {after}")
                after = event["number"]
                if event["kind"] in ("finished", "failed", "cancelled", "rejected"):
                    told[event["job"]] += 1
            if not events["events"]:
                break
        if set(told) != set(expected) or any(count != 1 for count in told.values()):
            raise Violation(f"the log tells of ends {dict(told)}, there were {sorted(expected)}")
