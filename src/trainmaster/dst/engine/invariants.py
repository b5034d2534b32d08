"""What must hold in the world, whatever the engine believes: checked against processes and checkpoints.

Only four checks look at the engine's books: that they give no device twice, that no accepted job is missing from
them, that a job called finished has done its work, and that they are empty at the end.
"""

from __future__ import annotations

from collections import Counter

from trainmaster.engine.engine import Ended, Engine
from trainmaster.model.capacity.free_resources import FreeCapacity
from trainmaster.model.command import Command, Launch
from trainmaster.model.job import JobId, JobSpec, Phase, PhaseCode
from trainmaster.model.units import GPU_MILLI
from trainmaster.sim.attempt_view import AttemptView
from trainmaster.sim.backend import SimulatedBackend

TOLERANCE = 1e-6
_PASSING = frozenset({PhaseCode.LAUNCHING, PhaseCode.RESIZING, PhaseCode.STOPPING, PhaseCode.LOST})
PASSING_MS_MAX = 100_000
"""Longer than a lease, a late report and a repeated command together."""


class Violation(BaseException):
    """Something that must never be. `job_id` is the one it is about, when there is one.

    No `Exception`: a service that sets aside what it did not foresee must not set this aside.
    """

    def __init__(self, what: str, job_id: str | None = None) -> None:
        super().__init__(what)
        self.job_id = job_id


class Checker:
    def __init__(self, backend: SimulatedBackend, specs: tuple[JobSpec, ...], counting: bool = False) -> None:
        """`counting`: only GPUs are counted, so that a worker's devices may lie on several nodes."""
        self.backend, self.counting = backend, counting
        self.specs = {spec.id: spec for spec in specs}
        self.ranges = {spec.id: [(spec.workers_min, spec.workers_max)] for spec in specs}
        """Every range of sizes that a user has allowed for a job."""
        self.accepted: set[JobId] = set()
        self.ended: dict[JobId, Ended] = {}
        self.cancelled: set[JobId] = set()
        self._checkpoint: dict[JobId, float] = {}
        self._generation: dict[JobId, int] = {}
        self._passing: dict[JobId, tuple[int, int, int]] = {}

    # -- after every step ----------------------------------------------------------------------------

    def check(self, engine: Engine | None) -> None:
        live = [*self.backend.running.values(), *self.backend.zombies]
        self._check_capacity(live)
        self._check_attempts(live)
        self._check_checkpoints()
        if engine is not None:
            if (engine.planned.device_milli < 0).any() or (engine.physical.device_milli < 0).any():
                raise Violation("a device is given to more jobs than it has room for")
            for job_id in sorted(self.accepted):
                if job_id not in engine.columns.job_index_of and job_id not in self.ended:
                    raise Violation(f"accepted job {job_id} is lost", job_id)

    def _check_capacity(self, live: list[AttemptView]) -> None:
        devices: Counter[tuple[int, int]] = Counter()
        cpu: Counter[int] = Counter()
        memory: Counter[int] = Counter()
        for attempt in live:
            worker, server = attempt.spec.worker, attempt.spec.server
            for part in attempt.allocation.parts:
                if part.node not in attempt.alive:
                    continue
                for device in part.devices:
                    devices[part.node, device] += attempt.allocation.share_milli
                cpu[part.node] += part.workers * worker.cpu_milli + part.servers * server.cpu_milli
                memory[part.node] += part.workers * worker.mem_mib + part.servers * server.mem_mib
        for (node, device), used in devices.items():
            if used > GPU_MILLI or device >= self.backend.cluster.nodes[node].gpus:
                users = sorted(i.spec.id for i in live if self._uses(i, node, device))
                raise Violation(
                    f"device {device} of node {node} is used by {', '.join(users)} ({used} milli)", users[0]
                )
        for node, used in cpu.items():
            if used > self.backend.cluster.nodes[node].cpu_milli:
                raise Violation(f"node {node}: {used} of {self.backend.cluster.nodes[node].cpu_milli} CPU milli in use")
        for node, used in memory.items():
            if used > self.backend.cluster.nodes[node].mem_mib:
                raise Violation(f"node {node}: {used} of {self.backend.cluster.nodes[node].mem_mib} MiB in use")

    @staticmethod
    def _uses(attempt: AttemptView, node: int, device: int) -> bool:
        parts = attempt.allocation.parts
        return node in attempt.alive and any(p.node == node and device in p.devices for p in parts)

    def _check_attempts(self, live: list[AttemptView]) -> None:
        seen: dict[JobId, int] = {}
        for attempt in live:
            job_id = attempt.spec.id
            if job_id in seen:
                raise Violation(f"{job_id} lives twice: generations {seen[job_id]} and {attempt.generation}", job_id)
            seen[job_id] = attempt.generation
            if job_id in self.ended:
                raise Violation(f"{job_id} runs although it is {self.ended[job_id].phase.name.lower()}", job_id)
            self._check_gang(attempt)
            if self._generation.get(job_id) != attempt.generation:
                self._generation[job_id] = attempt.generation
                if attempt.work_at_start < self._checkpoint.get(job_id, 0.0) - TOLERANCE:
                    raise Violation(f"{job_id} starts at {attempt.work_at_start}, below its checkpoint", job_id)

    def _check_gang(self, attempt: AttemptView) -> None:
        spec, allocation = attempt.spec, attempt.allocation
        workers, servers = allocation.workers, allocation.servers
        whole = any(low <= workers <= high for low, high in self.ranges[spec.id])
        whole = whole and spec.servers_min <= servers <= spec.servers_max
        whole = whole and sum(len(part.devices) for part in allocation.parts) == workers * spec.worker.devices
        for part in allocation.parts:
            whole = whole and (self.counting or len(part.devices) == part.workers * spec.worker.devices)
            if part.devices and spec.gpu_types:
                whole = whole and self.backend.cluster.nodes[part.node].accelerator in spec.gpu_types
        if not whole:
            raise Violation(f"{spec.id} runs as a gang that it did not ask for: {allocation}", spec.id)

    def _check_checkpoints(self) -> None:
        """Work that is safe stays safe. The storage takes what the last writer writes, so this can fail."""
        known = self._checkpoint
        for job_id, work in self.backend.saved.items():
            if work < known.get(job_id, 0.0) - TOLERANCE:
                raise Violation(f"the checkpoint of {job_id} fell from {known[job_id]} to {work}", job_id)
            known[job_id] = work

    def check_patience(self, engine: Engine, now_ms: int) -> None:
        """Once the faults are over every command is answered soon: nothing stays between two states."""
        ints = engine.columns.ints
        since: dict[JobId, tuple[int, int, int]] = {}
        for job_id, job_index in engine.columns.job_index_of.items():
            phase, generation = int(ints["phase"][job_index]), int(ints["generation"][job_index])
            if phase not in _PASSING:
                continue
            before = self._passing.get(job_id)
            same = before is not None and before[:2] == (phase, generation)
            since[job_id] = before if same and before else (phase, generation, now_ms)
            if now_ms - since[job_id][2] > PASSING_MS_MAX:
                raise Violation(f"{job_id} stays {Phase(phase).name} although all is well", job_id)
        self._passing = since

    # -- commands and ends ---------------------------------------------------------------------------

    def check_command(self, command: Command) -> None:
        """A launch must not meet a living attempt of the same job."""
        present = self.backend.running.get(command.job_id)
        if isinstance(command, Launch) and present is not None and present.generation != command.generation:
            raise Violation(
                f"{command.job_id} is launched as generation {command.generation} "
                f"while generation {present.generation} lives",
                command.job_id,
            )

    def note_end(self, end: Ended, blamed: int) -> None:
        """A job is said to be over: is it, and rightly so?"""
        job_id = end.spec.id
        if job_id in self.ended:
            raise Violation(f"{job_id} ended twice", job_id)
        self.ended[job_id] = end
        if job_id in self.backend.running:
            raise Violation(f"{job_id} is called {end.phase.name.lower()} while it runs", job_id)
        total = self.specs[job_id].work_total or 0.0
        done = self.backend.saved.get(job_id, 0.0)
        if end.phase == Phase.FINISHED and abs(done - total) > TOLERANCE:
            raise Violation(f"{job_id} is called finished with {done} of {total} steps done", job_id)
        if end.phase == Phase.FAILED and blamed < self.specs[job_id].max_attempts:
            raise Violation(f"{job_id} was given up after {blamed} faults of its own", job_id)
        if end.phase == Phase.CANCELLED and job_id not in self.cancelled:
            raise Violation(f"{job_id} is called cancelled, but nobody cancelled it", job_id)
        if end.phase == Phase.REJECTED and end.rejection is None:
            raise Violation(f"{job_id} was rejected without a verdict", job_id)

    def check_final(self, engine: Engine) -> None:
        """Faults are long over and all is done: nothing runs, and the books agree."""
        live = sorted(job_id for job_id, *_ in self.backend.live_members())
        if live:
            raise Violation(f"still running at the end: {', '.join(live)}", live[0])
        full = FreeCapacity.full(engine.cluster)
        for name, free_capacity in (("planned", engine.planned), ("physical", engine.physical)):
            same = (
                (free_capacity.device_milli == full.device_milli).all()
                and (free_capacity.whole == full.whole).all()
                and (free_capacity.cpu_milli == full.cpu_milli).all()
                and (free_capacity.mem_mib == full.mem_mib).all()
            )
            if not same:
                raise Violation(f"the {name} ledger is not empty at the end")
        books = (
            engine.held,
            engine.outstanding,
            engine.doubts,
            engine.ended_on,
            engine.reserved.n,
        )
        if any(books):
            raise Violation("the engine still keeps books about jobs that are over")
