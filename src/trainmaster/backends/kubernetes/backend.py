"""The Kubernetes backend: turns commands into pods and what pods and launchers say into events.

Everything happens in one event loop; `perform` and `observe` only leave a note for it, in order. What it knows is in
the API server, in pods' labels and annotations; so another process finds all incarnations again (`start` adopts them).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainmaster.backends.kubernetes import pods as p
from trainmaster.backends.kubernetes.client import KubeClient, Object
from trainmaster.backends.kubernetes.cluster_watch import ClusterWatch
from trainmaster.backends.kubernetes.facts import RunFacts, RunKey, run_token
from trainmaster.backends.kubernetes.gang_runs import GangRuns
from trainmaster.backends.kubernetes.launching import equip
from trainmaster.backends.kubernetes.pod_writer import PodWriter, Refused
from trainmaster.backends.kubernetes.run import EXITED, START_FAILED, STOPPED, Ending, Member, Run, Slot
from trainmaster.backends.kubernetes.start_gate import StartGate
from trainmaster.backends.kubernetes.translate import spec_of_trainingjob
from trainmaster.model import event as ev
from trainmaster.model.allocation import Allocation
from trainmaster.model.cluster import Cluster
from trainmaster.model.command import Command, Launch, Resize, Stop
from trainmaster.model.errors import InputError
from trainmaster.model.job import JobId, JobSpec
from trainmaster.model.lease import LeaseRule
from trainmaster.model.units import GPU_MILLI, MS_PER_S
from trainmaster.wire.agent import SERVER, WORKER, Progress

log = logging.getLogger(__name__)
REMEMBER_S = 120.0
"""So long after its end was passed on, an incarnation without pods stays in inventories."""
RELEASE_S = 5.0
"""So long after the last container has ended, a kubelet that does not say that its devices are free is believed to have
freed them."""
SLOW_START_S = 15.0
"""A gang that has not started so long after it was bound is looked at for what it waits for."""
KIND_PATIENCE = 6
"""So many times as long as the report of its start waits, a gang may take to say that it goes along with resizes."""
PODS_AT_A_TIME = 256
"""Enough to keep all connections busy."""
NAN = float("nan")


@dataclass(frozen=True)
class PodOptions:
    """Choices of the operator. A template's terminationGracePeriodSeconds goes before `grace_s`."""

    grace_s: float = 20.0
    hello_wait_s: float = 10.0
    agents: tuple[str, ...] = ()
    """Addresses (host:port) under which launchers find the service."""


class KubernetesBackend:
    """See `trainmaster.engine.ports.Backend`. All methods but `perform` and `observe` belong to the event loop."""

    def __init__(
        self,
        client: KubeClient,
        watch: ClusterWatch,
        lease: LeaseRule,
        deliver: Callable[[ev.Event], None],
        now_ms: Callable[[], int],
        *,
        secret: bytes,
        hub: Any = None,
        job_of: Callable[[str, str], Object | None],
        options: PodOptions | None = None,
        issued: Callable[[], int] | None = None,
    ) -> None:
        """`job_of(namespace, name)` is the TrainingJob. `issued` tells, in the driver's thread, the number of the last
        command that was handed over; without it an inventory speaks for the commands seen by this process alone."""
        self._loop = asyncio.get_running_loop()
        self._watch = watch
        self._writer = PodWriter(client)
        self._gate = StartGate(PODS_AT_A_TIME)
        self._lease = lease
        self._deliver = deliver
        self._now_ms = now_ms
        self._secret = secret
        self._hub = hub
        self._job_of = job_of
        self.options = options or PodOptions()
        self._issued = issued
        self.runs: dict[RunKey, Run] = {}
        self._newest: dict[str, int] = {}
        """Highest generation of each job that was started, stopped or seen."""
        self._fenced: dict[str, int] = {}
        """Generations up to this one are over: what turns up of them is deleted."""
        self._seen = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._tending: set[RunKey] = set()
        self._halted = False
        self._adopting = False
        self.gangs: GangRuns | None = None
        """Gangs of other controllers, if they are scheduled too."""
        self.binds = 0
        self.slow_starts: dict[str, str] = {}
        """What jobs wait for whose pods have their nodes; read by other threads."""
        self.on_slow_start: Callable[[str], None] = lambda _: None

    # -- for the driver ------------------------------------------------------------------------------

    def perform(self, command: Command) -> None:
        self._loop.call_soon_threadsafe(self._take, command)

    def observe(self) -> None:
        vouched = None if self._issued is None else self._issued()
        self._loop.call_soon_threadsafe(self._take_inventory, vouched)

    def is_making_pods(self) -> bool:
        return self._gate.busy

    def recast(self, cluster: Cluster) -> None:
        """The engine knows these nodes from now on; indices that it knew before mean the same."""
        self._loop.call_soon_threadsafe(self._watch.list_nodes, cluster)

    # -- life ------------------------------------------------------------------------------------------

    def start(self, expected: Iterable[Launch] = ()) -> None:
        """Adopt every pod that is there. The watch has been synchronised.

        `expected` are incarnations that have been answered for: what they hold, by their last command.
        """
        self._adopting = True
        for launch in expected:
            if launch.spec.payload.get("kind") == "Gang":
                continue
            key = RunKey(launch.job_id, launch.generation)
            facts = self._facts(launch.spec, key, launch.seq)
            if facts is not None:
                run = self.runs[key] = Run(key, facts, started=True, told_started=True)
                run.applied_seq = launch.seq
                run.aim(self._slots(launch.spec, launch.allocation), launch.seq)
                self._newest[key.job_id] = max(key.generation, self._newest.get(key.job_id, 0))
                self._open(run)
        for pod in self._watch.our_pods():
            self.pod_changed(pod, gone=False)
        self._adopting = False
        self._watch.listener = self
        self._watch.tell_all()
        for run in list(self.runs.values()):
            if run.started and run.unfilled() and not (run.facts.launcher and run.facts.spec.elastic):
                run.stop("its pods vanished while nobody watched")
            self._judge(run)

    def halt(self) -> None:
        """This process does not lead any more: nothing is written from now on."""
        self._halted = True
        if self.gangs is not None:
            self.gangs.halt()
        if self._hub is not None:
            self._hub.halt()
        for task in self._tasks:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished_task)

    def _finished_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the Kubernetes backend failed", exc_info=task.exception())

    # -- commands --------------------------------------------------------------------------------------

    def _take(self, command: Command) -> None:
        if self._halted:
            return
        self._seen = max(self._seen, command.seq)
        if self.gangs is not None and self.gangs.owns(command.job_id):
            self.gangs.take(command)
            return
        if isinstance(command, Launch):
            self._launch(command)
        elif isinstance(command, Stop):
            self._stop(command)
        else:
            self._resize(command)

    def _launch(self, command: Launch) -> None:
        key = RunKey(command.job_id, command.generation)
        run = self.runs.get(key)
        if run is not None and run.over:
            self._report_end(run)
            return
        if run is not None and run.seq >= command.seq:  # it is only said again
            if run.started:
                self._tell_started(run)
            self._judge(run)
            return
        if self._fenced.get(key.job_id, 0) >= key.generation:
            self._tell(ev.Stopped(command.job_id, command.generation, NAN))
            return
        facts = self._facts(command.spec, key, command.seq)
        if facts is None:
            self._tell(ev.StartFailed(command.job_id, command.generation, "its TrainingJob or its gang is gone"))
            return
        slots = self._slots(command.spec, command.allocation)
        if run is None:
            run = self.runs[key] = Run(key, facts)
            self._newest[key.job_id] = max(key.generation, self._newest.get(key.job_id, 0))
            self._fence(key.job_id, key.generation - 1)
            self._open(run)
        else:
            run.facts = replace(facts, seq=max(facts.seq, run.facts.seq))
        if run.seq == 0:
            run.applied_seq = max(run.applied_seq, command.seq)
        run.aim(slots, command.seq)
        if run.started:
            self._tell_started(run)
        self._judge(run)

    def _stop(self, command: Stop) -> None:
        key = RunKey(command.job_id, command.generation)
        self._newest[key.job_id] = max(key.generation, self._newest.get(key.job_id, 0))
        run = self.runs.get(key)
        if run is None:
            self._fence(key.job_id, key.generation)
            self._tell(ev.Stopped(command.job_id, command.generation, NAN))
            return
        if run.over:
            self._report_end(run)
            return
        run.stop(command.why)
        run.reported_silent = frozenset()  # it is asked again, so it is answered again
        if self._hub is not None and run.facts.launcher:
            self._hub.stop(key, command.why, run.facts.grace_s)
        self._judge(run)

    def _resize(self, command: Resize) -> None:
        key = RunKey(command.job_id, command.generation)
        run = self.runs.get(key)
        if run is None:
            return  # an inventory tells that it is gone
        if run.over:
            self._report_end(run)
            return
        if run.applied_seq >= command.seq:
            self._tell(ev.Resized(command.job_id, command.generation, command.seq, run.work, self._now_ms()))
            return
        run.facts = replace(run.facts, seq=max(run.facts.seq, command.seq))
        run.aim(self._slots(run.facts.spec, command.allocation), command.seq)
        self._judge(run)

    def _facts(self, spec: JobSpec, key: RunKey, seq: int) -> RunFacts | None:
        payload = spec.payload
        if payload.get("kind") != "TrainingJob":  # a gang of other pods that nobody knows any more
            return None
        namespace, name = str(payload["namespace"]), str(payload["name"])
        job = self._job_of(namespace, name)
        if job is None or job["metadata"]["uid"] != payload["uid"]:
            return None
        given = (job["spec"]["template"].get("spec") or {}).get("terminationGracePeriodSeconds")
        return RunFacts(
            key, namespace, name, str(payload["uid"]), seq, run_token(self._secret, key), self.options.agents,
            self._lease.lease_ms / MS_PER_S, self.options.grace_s if given is None else float(given), spec, job,
        )  # fmt: skip

    def _slots(self, spec: JobSpec, allocation: Allocation) -> list[Slot]:
        slots = []
        for part in allocation.parts:
            node = self._watch.cluster.nodes[part.node]
            each = 0 if spec.worker.gpu_milli < GPU_MILLI else spec.worker.devices
            slots += [Slot(WORKER, node.id, each, node.accelerator)] * part.workers
            slots += [Slot(SERVER, node.id, 0, node.accelerator)] * part.servers
        return slots

    # -- what was seen -----------------------------------------------------------------------------------

    def pod_changed(self, pod: Object, gone: bool) -> None:
        """Called by the watch for each pod of ours."""
        key = p.run_of(pod)
        if key is None or self._halted:
            return
        run = self.runs.get(key)
        if run is None:
            if gone:
                return
            if self._fenced.get(key.job_id, 0) >= key.generation:
                if not p.is_over(pod) or key.generation < self._newest.get(key.job_id, 0):
                    self._delete_stray(pod)
                return
            run = self._adopted(key, pod)
            if run is None:
                return
        name, _, _ = p.member_of(pod)
        member = run.members.get(name)
        if member is None:
            if gone:
                return
            member = run.adopt(pod)
            run.applied_seq = max(run.applied_seq, _seq_of(pod))
            if self._hub is not None and run.facts.launcher:
                self._hub.adopt(key, run.seat(member))
        if self._hub is not None and gone and run.facts.launcher:
            member.heard = member.heard or self._hub.last_renewed_ms(key, name) is not None
        run.saw(member, pod, gone, self._watch.is_ready(member.slot.node))
        if self._hub is not None and run.facts.launcher and not gone and pod.get("status", {}).get("podIP"):
            self._hub.address(key, member.name, pod["status"]["podIP"])
        if gone and member.alive and self._hub is not None:
            self._hub.fence(key, [member.name])
        if run.key.job_id in self.slow_starts:
            self._look_at_start(run)
        self._judge(run)

    def _look_at_start(self, run: Run) -> None:
        """Say what a gang waits for that should run by now; or that it waits no more."""
        if run.key.generation < self._newest.get(run.key.job_id, 0):
            return
        words = [] if run.started or run.ending is not None else [
            f"{member.pod_name} on {member.slot.node}: {waits}"
            for member in run.staying()
            if member.pod is not None and (waits := p.waits_for(member.pod))
        ]  # fmt: skip
        before = self.slow_starts.pop(run.key.job_id, "")
        if words and not self._halted:
            self.slow_starts[run.key.job_id] = words[0]
        if before != (words[0] if words else ""):
            self.on_slow_start(run.key.job_id)

    def _adopted(self, key: RunKey, pod: Object) -> Run | None:
        """A run that another process began. What it is a run of is known by the TrainingJob it belongs to."""
        meta = pod["metadata"]
        job = self._job_of(meta["namespace"], meta["labels"].get(p.f.JOB, ""))
        if job is None:
            return None  # the garbage collector ends it with the object that it belonged to
        try:
            spec = spec_of_trainingjob(job, 0)
        except InputError:
            return None
        if spec.id != key.job_id:
            return None
        facts = self._facts(spec, key, _seq_of(pod))
        if facts is None:
            return None
        run = self.runs[key] = Run(key, facts)
        self._newest[key.job_id] = max(key.generation, self._newest.get(key.job_id, 0))
        self._open(run)
        return run

    def _open(self, run: Run) -> None:
        if self._hub is not None and run.facts.launcher:
            self._hub.open(run.facts)

    def node_lost(self, node: str, index: int) -> None:
        """The node is not ready: nothing that runs there has its lease renewed from now on."""
        renewed_ms = []
        for run in self.runs.values():
            there = [m for m in run.alive if m.slot.node == node and m.bound]
            for member in there:
                member.severed = True
                last_ms = None
                if self._hub is not None and run.facts.launcher:
                    last_ms = self._hub.last_renewed_ms(run.key, member.name)
                renewed_ms.append(self._now_ms() if last_ms is None else last_ms)
            if there and self._hub is not None and run.facts.launcher:
                self._hub.fence(run.key, [m.name for m in there])
        self._tell(ev.NodeLost(index, max(renewed_ms, default=self._now_ms()), False, self._seen))
        for run in list(self.runs.values()):
            self._judge(run)

    def node_ready(self, node: str, index: int) -> None:
        for run in self.runs.values():
            for member in run.alive:
                if member.slot.node == node:
                    member.severed = False
                    if member.gone and not member.heard and member.pod is not None:
                        run.saw(member, member.pod, True, True)
        self._tell(ev.NodeJoined(index))
        for run in list(self.runs.values()):
            self._judge(run)

    def node_used(self, index: int, amounts: tuple[int, int, int]) -> None:
        self._tell(ev.NodeUsed(index, *amounts))

    # -- launchers (see `agent_hub.HubListener`) -----------------------------------------------------------

    def begun(self, key: RunKey) -> None:
        run = self.runs.get(key)
        if run is not None:
            if not run.begun:
                run.begun, run.begun_s = True, time.monotonic()
                if run.facts.spec.elastic:
                    self._loop.call_later(self.options.hello_wait_s, self._judge, run)
                    self._loop.call_later(KIND_PATIENCE * self.options.hello_wait_s + 0.01, self._judge, run)
            self._judge(run)

    def here(self, key: RunKey, member: str, elastic: bool) -> None:
        run = self.runs.get(key)
        if run is not None and member in run.members:
            run.members[member].heard = True
            run.speaks = elastic if run.speaks is None else run.speaks and elastic
            self._judge(run)

    def settled(self, key: RunKey, version: int, members: Iterable[str]) -> None:  # noqa: ARG002
        run = self.runs.get(key)
        if run is not None:
            run.settled = frozenset(members)
            self._judge(run)

    def progress(self, key: RunKey, member: str, told: Progress) -> None:  # noqa: ARG002
        run = self.runs.get(key)
        if run is None or run.over:
            return
        if told.saved is not None:
            run.work_saved = told.saved if math.isnan(run.work_saved) else max(run.work_saved, told.saved)
        if math.isnan(run.work) or told.work_done >= run.work:
            run.work = told.work_done
            job_id = JobId(key.job_id)
            self._tell(ev.Progressed(job_id, key.generation, told.work_done, self._now_ms(), told.rate, told.loss))

    def exited(self, key: RunKey, member: str, code: int, why: str = "") -> None:
        run = self.runs.get(key)
        found = None if run is None else run.members.get(member)
        if run is not None and found is not None:
            run.said_ended(found, code, why)
            if found.gone:
                self._judge(run)

    def lapsed(self, key: RunKey, member: str) -> None:
        """No renewal for so long that it has certainly ended itself."""
        run = self.runs.get(key)
        found = None if run is None else run.members.get(member)
        if run is None or found is None:
            return
        if found.end is None:
            run.certainly_over(found)
            if found.pod is not None and not found.gone:
                self._watch.distrust(found.slot.node)
                self._spawn(self._force_delete(run, found))
        self._judge(run)

    def refused(self, key: RunKey, member: str, why: str) -> None:
        run = self.runs.get(key)
        if run is not None and run.ending is None and not run.started:
            run.ending = Ending(START_FAILED, 1, f"{member}: {why}")
            self._judge(run)

    # -- conclusions ---------------------------------------------------------------------------------------

    def _judge(self, run: Run) -> None:
        """Draw every conclusion that can be drawn now, and let the rest be done."""
        if self._halted or self._adopting or run.over:
            return
        if run.restarting and not run.alive:
            run.restarting = run.begun = False
        dead = run.conclude(run.facts.spec.max_attempts * 10)
        if run.ending is None:
            for member in dead:
                member.leaving = True
                run.replaced += 1
                if self._hub is not None:
                    assert member.end is not None
                    self._hub.dismiss(run.key, [member.name], member.end.why, died=True)
            if not run.started and run.is_started(self.options.hello_wait_s, time.monotonic()):
                run.started = True
            if run.started and not run.told_started and run.seq:
                self._tell_started(run)
            if run.started and run.seq > run.applied_seq and run.is_applied():
                run.applied_seq = run.seq
                self._tell(ev.Resized(JobId(run.key.job_id), run.key.generation, run.seq, run.work, self._now_ms()))
        elif not run.creating:
            self._check_over(run)
        if not run.over:
            self._tend(run)

    def _check_over(self, run: Run) -> None:
        alive = run.alive
        silent = run.silent_nodes()
        if not alive:
            now_s = time.monotonic()
            run.emptied_s = now_s if run.emptied_s is None else run.emptied_s
            if not run.is_released() and now_s < run.emptied_s + RELEASE_S:
                self._loop.call_later(RELEASE_S + 0.01, self._judge, run)
                return
            run.over = True
            run.ended_s = time.monotonic()
            self.slow_starts.pop(run.key.job_id, None)
            if self._hub is not None and run.facts.launcher:
                self._hub.close_run(run.key)
            self._report_end(run)
            self._loop.call_later(REMEMBER_S, self._forget, run.key)
        elif all(member.severed for member in alive) and silent != run.reported_silent:
            run.reported_silent = silent
            indices = frozenset(filter(lambda i: i is not None, map(self._watch.index_of, silent)))
            self._tell(ev.Stopped(JobId(run.key.job_id), run.key.generation, run.work_saved, indices))  # type: ignore[arg-type]

    def _forget(self, key: RunKey) -> None:
        """A run that is over and has no pods left; its generation stays fenced."""
        run = self.runs.get(key)
        if run is None:
            return
        if all(member.pod is None or member.gone for member in run.members.values()):
            del self.runs[key]
            self._fence_number(key.job_id, key.generation)
        elif key.generation < self._newest.get(key.job_id, 0):
            self._loop.call_later(REMEMBER_S, self._forget, key)

    def _report_end(self, run: Run) -> None:
        job_id, generation, ending = JobId(run.key.job_id), run.key.generation, run.ending
        assert ending is not None
        if ending.kind == START_FAILED:
            node = None if ending.node is None else self._watch.index_of(ending.node) or 0
            self._tell(ev.StartFailed(job_id, generation, ending.why, node))
        elif ending.kind == EXITED:
            self._tell(ev.Exited(job_id, generation, ending.code, run.work_saved, ending.why))
        else:
            self._tell(ev.Stopped(job_id, generation, run.work_saved))

    def _tell_started(self, run: Run) -> None:
        self.slow_starts.pop(run.key.job_id, None)
        run.told_started = True
        self._tell(ev.Started(JobId(run.key.job_id), run.key.generation, run.work_saved, self._now_ms()))

    def _tell(self, event: ev.Event) -> None:
        if not self._halted:
            self._deliver(event)

    def _take_inventory(self, vouched: int | None) -> None:
        if self._halted:
            return
        seen = self._seen if vouched is None else max(vouched, self._seen)
        entries = []
        for key, run in sorted(self.runs.items()):
            job_id = JobId(key.job_id)
            if not run.over:
                starting = not run.started
                entries.append(ev.Observed(job_id, key.generation, run.work, run.applied_seq, starting=starting))
            elif key.generation == self._newest.get(key.job_id) and run.ending is not None:
                if run.ending.kind == EXITED:
                    entry = ev.Observed(job_id, key.generation, run.work_saved, run.applied_seq, run.ending.code)
                    entries.append(entry)
                elif run.ending.kind == STOPPED:
                    entries.append(ev.Observed(job_id, key.generation, run.work_saved, run.applied_seq, stopped=True))
        if self.gangs is not None:
            entries = sorted([*entries, *self.gangs.observed()], key=lambda entry: entry.job_id)
        self._tell(ev.Inventory(tuple(entries), seen, self._watch.ready_indices()))

    # -- doing ---------------------------------------------------------------------------------------------

    def _tend(self, run: Run) -> None:
        """One task for each run that has something to do."""
        if run.key not in self._tending and not self._halted and self._has_work(run):
            self._tending.add(run.key)
            self._spawn(self._work(run))

    def _has_work(self, run: Run) -> bool:
        if run.ending is not None or run.restarting:
            return any(not m.delete_asked and m.pod is not None and not m.gone for m in run.alive)
        if run.started and run.facts.spec.elastic and not self._kind_known(run):
            return False
        return run.seq > 0 and (bool(run.unfilled()) or bool(run.surplus()) or self._unbound(run) != [])

    def _kind_known(self, run: Run) -> bool:
        """Whether it is clear if the runtime goes along with changes of size; it has some time to say so."""
        if not run.facts.launcher or run.speaks is not None:
            return True
        return run.begun and time.monotonic() >= run.begun_s + KIND_PATIENCE * self.options.hello_wait_s

    def _unbound(self, run: Run) -> list[Member]:
        return [m for m in run.staying() if m.pod is not None and not m.gone and not m.bound]

    async def _work(self, run: Run) -> None:
        try:
            while self._has_work(run) and not self._halted:
                await self._act(run)
                # What was done is judged in another task's turn, so that the loop ends when there is nothing left.
                self._judge(run)
        finally:
            self._tending.discard(run.key)

    async def _act(self, run: Run) -> None:
        if run.ending is not None or run.restarting:
            await self._delete(run, [m for m in run.alive if not m.delete_asked and m.pod is not None and not m.gone])
            return
        surplus = run.surplus()
        if surplus and not run.speaks and run.started:
            await self._restart(run)
            return
        if surplus:
            for member in surplus:
                member.leaving = True
            self._dismiss(run, surplus)
            return
        if run.started and not run.speaks and run.unfilled() and any(m.alive for m in run.members.values()):
            await self._restart(run)
            return
        async with self._gate.passage(len(run.unfilled()) or len(self._unbound(run))):
            if run.ending is None and not run.restarting and not self._halted:
                await self._fill(run, run.unfilled())

    def _dismiss(self, run: Run, members: Sequence[Member]) -> None:
        """Members that leave a speaking gang go by themselves, others are deleted."""
        if self._hub is not None and run.facts.launcher and run.speaks:
            self._hub.dismiss(run.key, [m.name for m in members], "resize")
        else:
            self._spawn(self._delete(run, [m for m in members if m.pod is not None]))

    async def _restart(self, run: Run) -> None:
        """A gang that does not speak is resized by ending all and starting all."""
        run.restarting = True
        if self._hub is not None and run.facts.launcher:
            self._hub.stop(run.key, "resize", run.facts.grace_s)
            self._hub.dismiss(run.key, [m.name for m in run.staying()], "resize")
        for member in run.alive:
            member.leaving = True
        await self._delete(run, [m for m in run.alive if m.pod is not None and not m.gone])

    async def _fill(self, run: Run, slots: Sequence[Slot]) -> None:
        """Create pods for these places, and bind them when all of them are there."""
        run.creating = True
        try:
            new = run.enlist(slots)
            if self._hub is not None and run.facts.launcher and new:
                await self._writer.ensure_namespace(run.facts.namespace)
                for member in new:
                    self._hub.admit(run.key, run.seat(member))
            bodies = [self._body(run, member) for member in new]
            made = await self._writer.create(run.facts.namespace, bodies)
            for member, pod in zip(new, made, strict=True):
                if pod is not None and member.pod is None:
                    member.pod = pod
            to_bind = [(m.pod_name, m.slot.node) for m in run.staying() if not m.bound]
            if run.ending is None and not self._halted:
                await self._writer.bind(run.facts.namespace, to_bind)
                self.binds += len(to_bind)
                for member in run.staying():
                    member.bound = True
                self._loop.call_later(SLOW_START_S, self._look_at_start, run)
        except Refused as refused:
            if run.ending is None:
                if run.started:
                    run.ending = Ending(STOPPED, why=refused.why)
                else:
                    node = run.target[0].node if refused.node == "" else refused.node
                    run.ending = Ending(START_FAILED, 1, refused.why, node)
        finally:
            run.creating = False
            for member in run.members.values():
                # What was never made has ended; what was made in vain is deleted.
                if run.ending is not None and member.pod is None and member.end is None:
                    run.saw(member, _never(member), True, True)

    def _body(self, run: Run, member: Member) -> Object:
        seat = run.seat(member)
        body = p.pod_body(run.facts, seat, member.number)
        try:
            equip(body, seat, run.facts)
        except InputError as error:
            raise Refused(str(error)) from None
        return body

    async def _delete(self, run: Run, members: Sequence[Member]) -> None:
        for member in members:
            member.delete_asked = True
        grace_s = math.ceil(run.facts.grace_s)
        await self._writer.delete(run.facts.namespace, [(m.pod_name, _uid(m)) for m in members], grace_s)

    async def _force_delete(self, run: Run, member: Member) -> None:
        await self._writer.delete(run.facts.namespace, [(member.pod_name, _uid(member))], 0)

    def _delete_stray(self, pod: Object) -> None:
        meta = pod["metadata"]
        if not meta.get("deletionTimestamp"):
            self._spawn(self._writer.delete(meta["namespace"], [(meta["name"], meta["uid"])], None))

    def _fence(self, job_id: str, generation: int) -> None:
        """Incarnations up to this one are over for the engine: what is left of them goes."""
        if generation <= self._fenced.get(job_id, 0):
            return
        self._fence_number(job_id, generation)
        for key in [key for key in self.runs if key.job_id == job_id and key.generation <= generation]:
            run = self.runs[key]
            left = [m for m in run.members.values() if m.pod is not None and not m.gone]
            if run.over:
                if left:
                    self._spawn(self._delete(run, left))
                else:
                    del self.runs[key]
            else:
                run.stop("superseded")
                self._judge(run)

    def _fence_number(self, job_id: str, generation: int) -> None:
        self._fenced[job_id] = max(generation, self._fenced.get(job_id, 0))


def _seq_of(pod: Object) -> int:
    text = pod["metadata"]["annotations"].get(p.f.SEQ, "0")
    return int(text) if text.isdigit() else 0


def _uid(member: Member) -> str | None:
    return None if member.pod is None else member.pod["metadata"].get("uid")


def _never(member: Member) -> Object:
    return {"metadata": {"name": member.pod_name}, "spec": {"containers": [{"name": ""}]}}
