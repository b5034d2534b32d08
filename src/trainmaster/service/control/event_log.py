"""The event log: what a step meant, in words for people and as data for programs."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from typing import Any

from trainmaster.engine import queries
from trainmaster.engine.engine import Engine
from trainmaster.engine.ports import LogEntry
from trainmaster.engine.records import Ended
from trainmaster.gang.failure_text import error_line
from trainmaster.model import event as ev
from trainmaster.model.allocation import Allocation
from trainmaster.model.cluster import Cluster
from trainmaster.model.command import Command, Launch, Stop
from trainmaster.model.job import JobId
from trainmaster.model.reason_text import sentence, span
from trainmaster.model.reasons import Reason
from trainmaster.model.units import MS_PER_S

MAX_NOTE = 500


class Journal:
    """Collects the entries of one step. Reports about attempts that are over are not news."""

    def __init__(self, engine: Engine, now_ms: int) -> None:
        self.engine = engine
        self.now_ms = now_ms
        self._seq = queries.last_command_seq(engine)
        self.entries: list[LogEntry] = []
        self.exits: dict[str, str] = {}
        """How attempts ended that have ended in this step, by job."""
        self.outputs: dict[str, str] = {}
        """What those that failed wrote last."""

    def add(self, kind: str, job_id: str | None, text: str, **details: Any) -> None:
        self.entries.append(LogEntry(self.now_ms, kind, job_id, text, details))

    def before(self, events: Iterable[ev.Event]) -> None:
        """Called before the engine takes them, so that what is stale can still be told."""
        for event in events:
            if isinstance(event, ev.Inventory):  # ends that nobody was there to report
                self.before(
                    ev.Exited(entry.job_id, entry.generation, entry.exit_code, entry.work)
                    for entry in event.entries
                    if entry.exit_code is not None and entry.job_id not in self.exits
                )
                continue
            job_id = getattr(event, "job_id", None)
            generation = getattr(event, "generation", None)
            if generation is not None and not queries.is_current(self.engine, event.job_id, generation):  # type: ignore[union-attr]
                continue
            if isinstance(event, ev.UserEvent):
                self._tell_user_event(event, job_id)
            else:
                self._tell(event, job_id)

    def _tell_user_event(self, event: ev.UserEvent, job_id: str | None) -> None:
        match event:
            case ev.JobSubmitted(spec):
                self.add("submitted", spec.id, f"{spec.id} submitted: {_size(spec.workers_min, spec.workers_max)}")
            case ev.JobCancelled():
                self.add("cancel", job_id, f"{job_id}: cancel asked for")
            case ev.JobPaused():
                self.add("pause", job_id, f"{job_id}: pause asked for")
            case ev.JobResumed():
                self.add("resume", job_id, f"{job_id}: resume asked for")
            case ev.JobRangeChanged(found=True):
                size = _size(event.workers_min, event.workers_max)
                self.add(
                    "range",
                    job_id,
                    f"{job_id} is elastic: it may have {size}",
                    workers_min=event.workers_min,
                    workers_max=event.workers_max,
                )
            case ev.JobRangeChanged():
                low, high = event.workers_min, event.workers_max
                self.add("range", job_id, f"{job_id}: now takes {_size(low, high)}", workers_min=low, workers_max=high)
            case ev.JobTermsChanged(preemptible=True):
                self.add("checkpoints", job_id, f"{job_id} saves checkpoints: it may be preempted from now on")
            case ev.JobTermsChanged(work_total=float()):
                self.add(
                    "work", job_id, f"{job_id} says that it has {event.work_total:g} steps", steps=event.work_total
                )
            case ev.JobTermsChanged() if changed := _terms(event):
                self.add("terms", job_id, f"{job_id}: its user changed {changed}")
            case ev.JobHalted():
                self.exits[event.job_id] = event.why
                self.add("halted", job_id, f"{job_id} is stopped: {event.why}", final=event.final)
            case ev.EntityChanged():
                quota = "no quota" if event.quota_milli is None else f"quota {event.quota_milli / 1000:g} GPUs"
                inside = "" if event.policy is None else f", {event.policy} inside"
                text = f"team {event.entity}: weight {event.weight:g}, {quota}{inside}"
                self.add("entity", None, text, entity=event.entity)
            case _:
                pass

    def _tell(self, event: ev.Event, job_id: str | None) -> None:
        about = {"generation": getattr(event, "generation", None)}
        match event:
            case ev.Started():
                done = self._work(event.job_id, event.work_done)
                self.add("started", job_id, f"{job_id} runs (attempt {event.generation})", **about, work_done=done)
            case ev.StartFailed():
                self.exits[event.job_id] = f"did not start: {event.why}"
                self.add("start-failed", job_id, f"{job_id} did not start: {event.why}", **about)
            case ev.Resized():
                self.add("resized", job_id, f"{job_id} was resized", **about)
            case ev.Exited():
                how = how_ended(event)
                self.exits[event.job_id], self.outputs[event.job_id] = how, event.output
                error = f": {error_line(event.output)}" if event.output else ""
                facts = {"code": event.code, "why": event.why, "output": event.output}
                saved = self._work(event.job_id, event.work_saved)
                text = f"{job_id} ended: {how}{error}"[:MAX_NOTE]
                self.add("exited", job_id, text, **about, **facts, work_saved=saved)
            case ev.Stopped():
                self.exits[event.job_id] = queries.halted_why(self.engine, event.job_id) or "stopped"
                saved = self._work(event.job_id, event.work_saved)
                text = f"{job_id} stopped with {saved:g} steps saved"
                self.add("stopped", job_id, text, **about, work_saved=saved)
            case ev.NodeLost(node) if queries.is_node_up(self.engine, node):
                name = self.engine.cluster.nodes[node].id
                self.add("node-lost", None, f"node {name} is gone", node=name, confirmed=event.confirmed)
            case ev.NodeJoined(node) if not queries.is_node_up(self.engine, node):
                name = self.engine.cluster.nodes[node].id
                self.add("node-joined", None, f"node {name} is back", node=name)
            case ev.ClusterGrew(cluster):
                known = {node.id for node in self.engine.cluster.nodes}
                new = [node.id for node in cluster.nodes if node.id not in known]
                if new:
                    more = f" and {len(new) - 5} more" if len(new) > 5 else ""
                    self.add("nodes", None, f"new nodes: {', '.join(new[:5])}{more}", nodes=new[:100])
            case _:
                pass

    def _work(self, job_id: JobId, work: float) -> float:
        """What was measured, else what the books say."""
        return work if work == work else queries.work_saved(self.engine, job_id)

    def after(self, commands: Iterable[Command], ended: Iterable[Ended], notes: Iterable[str]) -> None:
        fresh = [command for command in commands if command.seq > self._seq]  # what is only sent again is no news
        pending = {command.seq for command in self.engine.pending_commands()} if fresh else ()
        for command in fresh:
            if command.seq in pending:
                self._tell_command(command)
        for end in ended:
            state = end.phase.name.lower()
            text = f"{end.spec.id} {state}"
            if end.rejection is not None:
                text += f": {sentence(Reason(end.rejection.why, details=end.rejection.details))}"
            self.add(state, end.spec.id, text, attempts=end.attempts, work_done=end.work_done)
        for notice in self.engine.drain_notices():
            spared_s = (notice.until_ms - self.now_ms) / MS_PER_S
            since = "its last checkpoint" if notice.has_saved else "its start: it has saved no checkpoint"
            text = (
                f"{notice.job_id} will be preempted in {span(spared_s)}, or when it saves: it would lose "
                f"{span(notice.loss_s)} of work since {since}"
            )
            self.add("preemption", notice.job_id, text, spared_s=spared_s, loss_s=notice.loss_s)
        for verdict in self.engine.drain_pair_verdicts():
            parts = (verdict.kept, verdict.other_kept)
            text = (
                f"{verdict.job_id} keeps {verdict.kept:.0%} of its speed beside {verdict.other_id} on "
                f"{verdict.gpu_type}, which keeps {verdict.other_kept:.0%}: "
                + ("they go on sharing" if verdict.worth else "taking turns is no slower, they are parted")
            )
            self.add("sharing", verdict.job_id, text, other=verdict.other_id, kept=parts, worth=verdict.worth)
        for note in notes:
            self.add("note", None, note[:MAX_NOTE])

    def _tell_command(self, command: Command) -> None:
        job_id, about = command.job_id, {"generation": command.generation, "seq": command.seq}
        if isinstance(command, Stop):
            self.add("stop", job_id, f"{job_id} is stopped: {command.why}", **about, why=command.why)
            return
        kind, does = ("launch", "starts on") if isinstance(command, Launch) else ("resize", "is resized to")
        found = places(self.engine.cluster, command.allocation)
        self.add(kind, job_id, f"{job_id} {does} {_where(found)}{self._beside(job_id)}", **about, places=found)

    def _beside(self, job_id: JobId) -> str:
        """With whom it shares the devices; one that is still being made room for is told of when it starts."""
        others = [shared.job_id for shared in queries.shared_with(self.engine, job_id)]
        return f", sharing devices with {', '.join(others)}" if others else ""


def places(cluster: Cluster, allocation: Allocation) -> list[dict[str, Any]]:
    """Its nodes, and what it has on each."""
    return [
        {
            "node": cluster.nodes[part.node].id,
            "accelerator": cluster.nodes[part.node].accelerator,
            "workers": part.workers,
            "servers": part.servers,
            "devices": list(part.devices),
        }
        for part in allocation.parts
    ]


def how_ended(event: ev.Exited) -> str:
    """`exit 1`, `signal SIGKILL`, and what the backend adds."""
    if event.code < 0:
        try:
            how = f"signal {signal.Signals(-event.code).name}"
        except ValueError:
            how = f"signal {-event.code}"
    else:
        how = f"exit {event.code}"
    return f"{how} ({event.why})" if event.why and event.why not in (how, "crashed") else how


def _size(low: int, high: int) -> str:
    return f"{low} worker{'' if low == 1 else 's'}" if low == high else f"{low}..{high} workers"


def _where(places: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(f"{place['node']} ({place['workers']})" for place in places)


def _terms(event: ev.JobTermsChanged) -> str:
    names = {"deadline_ms": "deadline", "weight": "weight", "priority": "priority", "time_s": "time limit"}
    return ", ".join(text for name, text in names.items() if getattr(event, name) is not None)
