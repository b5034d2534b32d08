"""The fault simulation of the Kubernetes backend: two replicas, a simulated API server, nodes, launchers and trainers.

`python -m trainmaster.dst.kubernetes.world --seeds 2000 --processes 2` runs seeds and fails on any violation;
`--replay SEED` prints one of them event by event. See docs/testing.md.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from typing import Any

from trainmaster.backends.kubernetes.api import paths
from trainmaster.dst.engine.chaos_policy import ChaosPolicy
from trainmaster.dst.engine.faulty_world import Outcome
from trainmaster.dst.engine.invariants import Violation
from trainmaster.dst.engine.story import Story
from trainmaster.dst.kubernetes.api_server import ApiServer, Object, Path, parse
from trainmaster.dst.kubernetes.kubelet import Kubelet, run_all
from trainmaster.dst.kubernetes.launchers import Network
from trainmaster.dst.kubernetes.replica import PORT, Died, Replica
from trainmaster.dst.kubernetes.trainers import Trainers, TrueJob
from trainmaster.dst.kubernetes.transport import Line, Weather
from trainmaster.dst.kubernetes.virtual_loop import START_S, VirtualLoop, virtual_time
from trainmaster.engine.ports import Archive, Commit, JsonObject
from trainmaster.engine.records import Settings
from trainmaster.model.job import Phase
from trainmaster.model.lease import LeaseRule
from trainmaster.model.policy import Policy
from trainmaster.policies.registry import create
from trainmaster.stores import journal

FAULTS_S = 240.0
"""So long there are faults."""
SETTLE_S = 1_200.0
"""By then everything must have come to its end."""
JOBS_NAMESPACE = "default"
SNAPSHOT_ENTRIES = 60
LAST = 80
"""Lines of the story of a violation."""


class World:
    """One seed."""

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        self.loop = loop
        self.rng = rng = random.Random(seed)
        self.story = Story()
        self.violation = ""
        self.policy = rng.choice(("chaos", "chaos", "fifo", "srtf", "las"))
        self.outcome = Outcome(seed, self.policy)
        self.server = ApiServer(loop.time, rng)
        self.server.watch(Path("pods", None, None, None), {"resourceVersion": "100"}, self._tell_pod)
        self.weather = Weather.draw(rng)
        self.trainers = Trainers(loop.time, rng)
        self.kubelets: dict[str, Kubelet] = {}
        self.network = Network(rng, lambda node: self.kubelets[node].cut or not self.kubelets[node].on, loop.listeners)
        self.settings = Settings(lease=LeaseRule(lease_ms=rng.choice((10_000, 20_000))), backoff_ms=2_000)
        self.cancelled: set[str] = set()
        self.taken: dict[str, str] = {}
        """Jobs that the control plane knows, or has known, with their ids."""
        self.ended: dict[str, Phase] = {}
        self.replicas: dict[str, Replica] = {}
        self._starts = 0
        loop.set_exception_handler(self._failed)
        for k in range(rng.randint(2, 4)):
            kubelet = Kubelet(
                f"node{k}",
                rng.choice((2, 4)),
                self.server,
                self.trainers,
                self.network,
                rng,
                late=rng.choice((0.0, 0.2)),
                heard_s=loop.time(),
            )
            self.kubelets[kubelet.name] = kubelet
            self.server.create(parse(paths.nodes()), kubelet.node())
        for k in range(rng.randint(2, 6)):
            loop.call_later(rng.random() * FAULTS_S * 0.8, self._submit, k)
        self.names = [f"replica-{k}" for k in range(rng.choice((2, 2, 3)))]
        for name in self.names:
            self._start(name)
        self.spawn(run_all(list(self.kubelets.values()), self.trainers))
        self.spawn(self._make_trouble())

    def spawn(self, work: Any) -> None:
        task = self.loop.create_task(work)
        task.add_done_callback(lambda done: None if done.cancelled() else self._note(done.exception()))

    def tell(self, kind: str, what: Any) -> None:
        self.story.add(int((self.loop.time() - START_S) * 1000), kind, what)

    def _tell_pod(self, what: str, pod: Object) -> None:
        status = pod["status"]
        codes = [each["state"].get("terminated", {}).get("exitCode") for each in status.get("containerStatuses", ())]
        text = f"{what.lower()} {pod['metadata']['name']} on {pod['spec'].get('nodeName')}: {status.get('phase')}"
        going = ", deleted" if "deletionTimestamp" in pod["metadata"] else ""
        self.tell("pod", text + (f", exit {codes[0]}" if codes and codes[0] is not None else "") + going)

    # -- the cluster's users -------------------------------------------------------------------------

    def _submit(self, k: int) -> None:
        rng, name = self.rng, f"job{k}"
        workers = sorted((rng.randint(1, 3), rng.randint(1, 3)))
        gpus = rng.choice((1, 1, 2))
        launcher = rng.random() < 0.7
        most = sum(each.gpus // gpus for each in self.kubelets.values())
        workers = [min(each, most) for each in workers]
        work_s = rng.uniform(10, 120)
        trainer = {"name": "trainer", "image": "any", "command": ["train"]}
        sidecars = [{"name": "sidecar", "image": "any"}] if rng.random() < 0.2 else []
        template = {"spec": {"containers": [trainer, *sidecars]}}
        body = {
            "apiVersion": paths.API_VERSION,
            "kind": "TrainingJob",
            "metadata": {"name": name, "annotations": {} if launcher else {"trainmaster.dev/launcher": "false"}},
            "spec": {
                "workers": {"min": workers[0], "max": workers[1]},
                "gpusPerWorker": gpus,
                "template": template,
                "maxAttempts": 1,
            },
        }
        self.trainers.jobs[name] = TrueJob(name, work_s, workers[0], launcher)
        self.server.create(parse(paths.training_jobs(JOBS_NAMESPACE)), body)
        self.tell(
            "submit",
            f"{name}: {workers[0]}..{workers[1]} workers of {gpus} GPUs, {work_s:.0f} s"
            + ("" if launcher else ", no launcher"),
        )
        if rng.random() < 0.15:
            self.loop.call_later(rng.uniform(5, 60), self._cancel, name)
        elif rng.random() < 0.2:
            from_s = rng.uniform(5, 60)
            self.loop.call_later(from_s, self._edit, name, {"suspend": True})
            self.loop.call_later(from_s + rng.uniform(1, 60), self._edit, name, {"suspend": False})
        elif rng.random() < 0.3:
            self.loop.call_later(rng.uniform(5, 60), self._edit, name, {"workers": {"max": workers[0]}})

    def _edit(self, name: str, spec: Object) -> None:
        self.tell("edit", f"{name}: {spec}")
        self.server.patch(parse(paths.training_jobs(JOBS_NAMESPACE, name)), {"spec": spec})

    def _cancel(self, name: str) -> None:
        """Its object is deleted; its pods follow."""
        self.tell("cancel", name)
        self.cancelled.add(name)
        self.server.delete(parse(paths.training_jobs(JOBS_NAMESPACE, name)), {})

    # -- replicas ------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        self._starts += 1
        self.replicas[name] = Replica(
            self.loop,
            f"{name}.{self._starts}",
            Line(self.server, self.weather, self.rng),
            self.settings,
            lambda _: policy_of(self.policy),
            tuple(f"{each}:{PORT}" for each in self.names),
            self._committed,
            self._took_over,
            self.tell,
            self._note,
        )

    def _committed(self, commit: Commit) -> None:
        """The control plane has made up its mind; the world says whether that is true."""
        self.outcome.steps += 1
        self.taken |= {rec["spec"]["payload"]["name"]: rec["spec"]["id"] for rec in commit.jobs.values() if rec}
        for record in commit.ended.values():
            if record["spec"]["payload"]["name"] in self.ended:
                raise Violation(f"{record['spec']['payload']['name']} ended twice")
            self._ended(record)

    def _took_over(self, store: Archive) -> None:
        """The last leader may have died before it could say what it had committed."""
        for name, job_id in self.taken.items():
            record = None if name in self.ended else store.find_ended(job_id)
            if record is not None:
                self._ended(record)

    def _ended(self, record: JsonObject) -> None:
        job = self.trainers.jobs[record["spec"]["payload"]["name"]]
        phase = Phase(record["phase"])
        self.tell("end", f"{job.name} {phase.name.lower()}")
        self.ended[job.name] = phase
        if phase == Phase.FINISHED and not job.complete:
            raise Violation(f"{job.name} is called finished with {job.saved_s:.1f} of {job.work_s:.1f} s done")
        if phase == Phase.CANCELLED and job.name not in self.cancelled:
            raise Violation(f"{job.name} was cancelled by nobody")
        if phase == Phase.FAILED:
            raise Violation(f"{job.name} is called failed, and no trainer ever fails")
        if job.trainers:
            raise Violation(f"{job.name} is over, and {[each.member for each in job.trainers.values()]} live")

    # -- trouble -------------------------------------------------------------------------------------

    async def _make_trouble(self) -> None:
        kinds = (
            self._kill,
            self._leave,
            self._cut_replica,
            self._cut_node,
            self._deafen,
            self._power,
            self._compact,
            self._evict,
            self._outage,
            self._cordon,
        )
        while self.loop.time() < START_S + FAULTS_S:
            await asyncio.sleep(self.rng.uniform(2, 25))
            self.rng.choice(kinds)()
        self.weather.__dict__.update(Weather().__dict__)
        self.tell("faults", "over")

    def _later(self, at_most_s: float, call: Any, *arguments: Any) -> None:
        self.loop.call_later(self.rng.uniform(1, at_most_s), call, *arguments)

    def _kill(self) -> None:
        name = self.rng.choice(sorted(self.replicas))
        if not self.replicas[name].dead:
            self.tell("KILL", name)
            self.outcome.restarts += 1
            self.replicas[name].die()
            self._later(30, self._start, name)

    def _leave(self) -> None:
        """As by SIGTERM, at an update of the service."""
        name = self.rng.choice(sorted(self.replicas))
        if not self.replicas[name].dead:
            self.tell("LEAVE", name)
            self.outcome.restarts += 1
            self.replicas[name].leave()
            self._later(30, self._start, name)

    def _cut_replica(self) -> None:
        replica = self.replicas[self.rng.choice(sorted(self.replicas))]
        if not replica.dead:
            self.tell("CUT", f"{replica.name} from the API server")
            replica.line.cut = True
            self._later(40, self._heal_replica, replica)

    def _heal_replica(self, replica: Replica) -> None:
        replica.line.cut = replica.dead
        self.tell("HEAL", replica.name)

    def _outage(self) -> None:
        self.tell("OUTAGE", "of the API server")
        for replica in self.replicas.values():
            if not replica.dead:
                replica.line.cut = True
                self._later(25, self._heal_replica, replica)

    def _cut_node(self) -> None:
        kubelet = self.kubelets[self.rng.choice(sorted(self.kubelets))]
        if not kubelet.cut:
            kubelet.cut = True
            self.tell("CUT", kubelet.name)
            self._later(150, self._heal_node, kubelet)

    def _heal_node(self, kubelet: Kubelet) -> None:
        kubelet.cut = False
        self.tell("HEAL", kubelet.name)

    def _deafen(self) -> None:
        kubelet = self.kubelets[self.rng.choice(sorted(self.kubelets))]
        self.tell("DEAF", f"{kubelet.name}'s kubelet")
        kubelet.deaf = True
        self._later(150, setattr, kubelet, "deaf", False)

    def _cordon(self) -> None:
        name = self.rng.choice(sorted(self.kubelets))
        self.tell("CORDON", name)
        where = Path("nodes", None, name, None)
        self.server.patch(where, {"spec": {"unschedulable": True}})
        self._later(60, self.server.patch, where, {"spec": {"unschedulable": None}})

    def _power(self) -> None:
        kubelet = self.kubelets[self.rng.choice(sorted(self.kubelets))]
        if kubelet.on:
            self.tell("POWER", f"{kubelet.name} off")
            kubelet.power_off()
            self._later(150, self._power_on, kubelet)

    def _power_on(self, kubelet: Kubelet) -> None:
        kubelet.power_on()
        self.tell("POWER", f"{kubelet.name} on")

    def _compact(self) -> None:
        self.tell("COMPACT", "history")
        self.server.compact(self.server.version)

    def _evict(self) -> None:
        """A stranger deletes a pod; one with a launcher perhaps by force."""
        pods = [key for key in self.server.objects if key[0] == "pods"]
        if not pods:
            return
        _, namespace, name = self.rng.choice(sorted(pods))
        job = self.server.objects["pods", namespace, name]["metadata"]["labels"]["trainmaster.dev/job"]
        force = self.trainers.jobs[job].launcher and self.rng.random() < 0.5
        self.tell("DELETE", f"{name}{' by force' if force else ''}")
        self.server.delete(Path("pods", namespace, name, None), {"gracePeriodSeconds": 0} if force else {})

    # -- the run -------------------------------------------------------------------------------------

    def about(self) -> str:
        return str(self.weather)

    def _failed(self, _: Any, context: dict[str, Any]) -> None:
        self._note(context.get("exception") or RuntimeError(context.get("message")))

    def _note(self, error: BaseException | None) -> None:
        if error is None or isinstance(error, Died | asyncio.CancelledError) or self.violation:
            return
        self.violation = str(error)
        if not isinstance(error, Violation):
            self.violation = "".join(traceback.format_exception(error)[-3:])

    @property
    def over(self) -> bool:
        return self.loop.time() > START_S + FAULTS_S + 30 and not self.unended and not self.trainers.live

    @property
    def unended(self) -> set[str]:
        """A job whose object was deleted before anybody took it never was one."""
        return self.trainers.jobs.keys() - self.ended.keys() - (self.cancelled - self.taken.keys())

    def run(self) -> Outcome:
        outcome = self.outcome
        end_s = START_S + FAULTS_S + SETTLE_S
        try:
            while not self.violation and not self.over and self.loop.time() < end_s:
                self.loop._run_once()
        except Violation as violation:
            self._note(violation)
        if not self.violation and not self.over:
            self.violation = f"{sorted(self.unended) or 'trainers'} did not come to an end after the faults were over"
        outcome.violation = self.violation
        outcome.end_ms = int((self.loop.time() - START_S) * 1000)
        for phase in self.ended.values():
            outcome.ends[phase.name.lower()] = outcome.ends.get(phase.name.lower(), 0) + 1
        if self.violation:
            outcome.story = self.story.lines(last=LAST)
        for replica in self.replicas.values():
            replica.die()
        return outcome


def policy_of(name: str) -> Policy:
    return ChaosPolicy(shares=False) if name == "chaos" else create(name)


class _InLoop:
    """Stands in for the thread that writes snapshots: a later turn of the loop."""

    def __init__(self, target: Any, args: tuple[Any, ...] = (), **_: Any) -> None:
        self._target, self._args = target, args

    def start(self) -> None:
        asyncio.get_running_loop().call_soon(self._target, *self._args)

    def is_alive(self) -> bool:
        return False

    def join(self, _timeout_s: float | None = None) -> None: ...


class _Threads:
    Thread = _InLoop


def run_world(seed: int) -> tuple[World, Outcome]:
    threads, journal.threading = journal.threading, _Threads  # type: ignore[assignment]
    entries, journal.SNAPSHOT_ENTRIES = journal.SNAPSHOT_ENTRIES, SNAPSHOT_ENTRIES
    try:
        with virtual_time(seed) as loop:
            world = World(seed, loop)
            return world, world.run()
    finally:
        journal.threading, journal.SNAPSHOT_ENTRIES = threads, entries


def run_seed(seed: int) -> Outcome:
    return run_world(seed)[1]


if __name__ == "__main__":
    from trainmaster.dst.engine import world_cli

    world_cli.main("trainmaster.dst.kubernetes.world", run_seed, run_world)
