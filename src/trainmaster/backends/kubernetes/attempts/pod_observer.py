"""What the watch sees of our pods and of nodes (see `cluster_watch.Listener`), entered in the registry and judged."""

from __future__ import annotations

from collections.abc import Iterable

from trainmaster.backends.kubernetes.api.client import Object
from trainmaster.backends.kubernetes.attempts import pod_objects as p
from trainmaster.backends.kubernetes.attempts.driver import RunDriver
from trainmaster.backends.kubernetes.attempts.observations import RunKey
from trainmaster.backends.kubernetes.attempts.pod_actions import PodWork
from trainmaster.backends.kubernetes.attempts.pod_attempt import Member, Run
from trainmaster.backends.kubernetes.attempts.registry import AttemptRegistry
from trainmaster.backends.kubernetes.attempts.reports import RunReports
from trainmaster.backends.kubernetes.attempts.slow_starts import SlowStarts
from trainmaster.backends.kubernetes.resources.training_job import spec_of_trainingjob
from trainmaster.model import event as ev
from trainmaster.model.errors import InputError


class PodObserver:
    def __init__(
        self, registry: AttemptRegistry, reports: RunReports, driver: RunDriver, work: PodWork, slow: SlowStarts
    ) -> None:
        self._registry = registry
        self._reports = reports
        self._driver = driver
        self._work = work
        self._slow = slow

    # -- pods ------------------------------------------------------------------------------------------

    def pod_changed(self, pod: Object, gone: bool) -> None:
        key = p.run_of(pod)
        if key is None or self._registry.halted:
            return
        self._registry.note_pod(pod, gone)
        run = self._registry.runs.get(key)
        if run is None and not gone:
            run = self._found(key, pod)
        if run is None:
            self._note_orphan(key, pod, gone)
            return
        member = run.members.get(p.member_of(pod)[0])
        if member is None:
            if gone:
                return
            member = self._adopt(run, pod)
            if member is None:
                return
        self._saw(run, member, pod, gone)
        if run.attempt.outcome is not None and not member.alive and not gone and p.node_of(pod) is None:
            self._work.delete_stray(pod)  # it was believed never to have been made
        self._slow.changed(run)
        self._driver.advance(run)

    def _saw(self, run: Run, member: Member, pod: Object, gone: bool) -> None:
        launchers, key = self._registry.launchers, run.key
        if gone:
            member.heard = member.heard or launchers.last_renewed_ms(key, member.name) is not None
        run.saw(member, pod, gone, self._registry.watch.is_ready(member.node))
        address = pod.get("status", {}).get("podIP")
        if address and not gone:
            launchers.address(key, member.name, address)
        if gone and member.alive:
            launchers.fence(key, [member.name])

    def _found(self, key: RunKey, pod: Object) -> Run | None:
        """A run that another process began. What it is a run of is known by the TrainingJob it belongs to."""
        registry = self._registry
        if registry.is_fenced(key):
            if not p.is_over(pod) or not registry.is_newest(key):
                self._work.delete_stray(pod)
            return None
        meta = pod["metadata"]
        job = registry.job_of(meta["namespace"], meta["labels"].get(p.f.JOB, ""))
        if job is None:
            return None  # the garbage collector ends it with the object that it belonged to
        try:
            spec = spec_of_trainingjob(job, 0)
        except InputError:
            return None
        facts = registry.facts(spec, key, p.seq_of(pod)) if spec.id == key.job_id else None
        return None if facts is None else registry.new_run(key, facts)

    def _note_orphan(self, key: RunKey, pod: Object, gone: bool) -> None:
        """A pod without a run. While it is there its devices are not free, and a `Stop` of its attempt not answered."""
        orphans = self._registry.orphans.setdefault(key, set())
        if gone or p.is_over(pod) or p.node_of(pod) is None:
            orphans.discard(pod["metadata"]["uid"])
        else:
            orphans.add(pod["metadata"]["uid"])
        if not orphans:
            del self._registry.orphans[key]
            command = self._registry.unanswered.pop(key, None)
            if command is not None:
                self._reports.never_was(command)

    def _adopt(self, run: Run, pod: Object) -> Member | None:
        member = run.adopt(pod)
        if member is not None and run.facts.launcher:
            self._registry.launchers.adopt(run.key, member.name)
        return member

    def vanished(self, run: Run) -> None:
        """Pods of it went while nobody watched. The last leader may have renewed leases until now."""
        launchers, is_ready = self._registry.launchers, self._registry.watch.is_ready
        for member in run.vanish(is_ready, leased=run.facts.launcher):
            if run.facts.launcher:
                launchers.adopt(run.key, member.name)
                launchers.fence(run.key, [member.name])

    # -- nodes -----------------------------------------------------------------------------------------

    def heard_nodes(self) -> frozenset[str]:
        renews = self._registry.launchers.renews
        return frozenset(m.node for run in self._registry.runs.values() for m in run.alive if renews(run.key, m.name))

    def nodes_unready(self, nodes: Iterable[str]) -> None:
        """What launchers have said already of ends there has to do."""
        silent = frozenset(nodes)
        for run in list(self._registry.runs.values()):
            ended = [m for m in run.alive if m.node in silent and m.last_word is not None]
            for member in ended:
                run.believe_last_word(member)
            if ended:
                self._driver.advance(run)

    def node_lost(self, node: str, index: int) -> None:
        """The node is not ready, and silent: nothing that runs there has its lease renewed from now on."""
        self.nodes_unready([node])
        launchers, now_ms = self._registry.launchers, self._reports.now_ms()
        renewed_ms: list[int] = []
        for run in self._registry.runs.values():
            run.attempt.on_node(node, ready=False)
            there = [m for m in run.alive if m.node == node and m.bound]
            for member in there:
                last_ms = launchers.last_renewed_ms(run.key, member.name)
                renewed_ms.append(now_ms if last_ms is None else last_ms)
            if there:
                launchers.fence(run.key, [m.name for m in there])
        self._reports.tell(ev.NodeLost(index, max(renewed_ms, default=now_ms), False, self._registry.seen_seq))
        self._driver.advance_all()

    def node_ready(self, node: str, index: int) -> None:
        for run in self._registry.runs.values():
            run.attempt.on_node(node, ready=True)
            for member in run.alive:
                if member.node == node and member.gone and not member.heard and member.pod is not None:
                    run.saw(member, member.pod, True, True)
        self._reports.tell(ev.NodeJoined(index))
        self._driver.advance_all()

    def node_used(self, index: int, amounts: tuple[int, int, int]) -> None:
        self._reports.tell(ev.NodeUsed(index, *amounts))
