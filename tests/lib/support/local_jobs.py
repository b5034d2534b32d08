"""A local backend for tests, with short ways to say what shall run and what is awaited."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from support import PYTHONPATH
from support.backend_benches import EMULATED, LocalBench, living_processes
from support.kill_loop import processes_of
from trainmaster.gang import linux
from trainmaster.model import event as ev
from trainmaster.model.allocation import Allocation, Part
from trainmaster.model.command import Launch, Resize, Stop
from trainmaster.model.job import JobSpec
from trainmaster.testing.builders import a_job

E = TypeVar("E", bound=ev.Event)


def devices(count: int, first: int = 0, servers: int = 0) -> Allocation:
    return Allocation(0, (Part(0, count, servers, tuple(range(first, first + count))),))


class LocalJobs(LocalBench):
    """`run` launches; `expect` waits for an event; everything else looks at the machine itself."""

    def __init__(self, home: Path, **options: Any) -> None:
        super().__init__(home, **options)
        self.seq = 0
        self.seen: list[ev.Event] = []

    def run(
        self,
        name: str,
        command: list[str],
        *,
        workers: int | tuple[int, int] = 1,
        servers: int = 0,
        size: int | None = None,
        generation: int = 1,
        env: Mapping[str, str] | None = None,
        speed: float = 100.0,
        **payload: Any,
    ) -> JobSpec:
        lowest, highest = (workers, workers) if isinstance(workers, int) else workers
        spec = a_job(
            name, elastic=(lowest, highest), servers=(servers, servers), seconds=payload.pop("steps", None),
            speeds={"v100": speed}, workers_ref=1, max_attempts=payload.pop("max_attempts", 3),
            payload={"command": command, "env": {"PYTHONPATH": PYTHONPATH, **(env or {})}, **payload},
        )  # fmt: skip
        self.seq += 1
        self.perform(Launch(spec.id, generation, self.seq, devices(size or lowest, servers=servers), spec))
        return spec

    def emulate(self, name: str, steps: int, **options: Any) -> JobSpec:
        return self.run(name, [*EMULATED, "--steps", str(steps), "--save-every", "5", "--tick-s", "0.02"], **options)

    def stop(self, spec: JobSpec, generation: int = 1) -> None:
        self.seq += 1
        self.perform(Stop(spec.id, generation, self.seq, "wanted by a test"))

    def resize(self, spec: JobSpec, allocation: Allocation) -> int:
        self.seq += 1
        self.perform(Resize(spec.id, 1, self.seq, allocation))
        return self.seq

    def expect(self, kind: type[E], spec: JobSpec | None = None) -> E:
        while True:
            event = self.next_event()
            self.seen.append(event)
            if isinstance(event, kind) and (spec is None or getattr(event, "job_id", None) == spec.id):
                return event
            over = isinstance(event, ev.Exited | ev.Stopped | ev.StartFailed)
            assert not (over and spec is not None and event.job_id == spec.id), f"unexpected {event}"

    def until(self, true: Callable[[], object], what: str, patience_s: float = 20.0) -> None:
        deadline_s = time.monotonic() + patience_s
        while not true():
            assert time.monotonic() < deadline_s, f"not within {patience_s} s: {what}; seen {self.seen}"
            time.sleep(0.02)

    # -- the machine's truth -------------------------------------------------------------------------

    def folder(self, spec: JobSpec, generation: int = 1) -> Path:
        return self.home / "jobs" / spec.id / str(generation)

    def log(self, spec: JobSpec, member: str = "worker-0", generation: int = 1) -> str:
        path = self.folder(spec, generation) / f"{member}.log"
        return path.read_text() if path.exists() else ""

    def said(self, spec: JobSpec, words: str, member: str = "worker-0") -> None:
        self.until(lambda: words in self.log(spec, member), f"{member} says {words!r}")

    def pids(self, spec: JobSpec) -> list[int]:
        return living_processes(spec.id, self.home)

    def member_pid(self, spec: JobSpec, member: str) -> int:
        """Waits until there is such a member."""
        found: list[int] = []

        def there() -> bool:
            found[:] = linux.marked("TRAINMASTER_MEMBER", member, among=self.pids(spec))
            return bool(found)

        self.until(there, f"{member} lives")
        return found[0]

    def supervisor_pid(self, spec: JobSpec) -> int:
        folder = str(self.folder(spec).resolve()).encode()
        supervisors = processes_of(self.home)["keeper"]
        return next(pid for pid in supervisors if folder in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))

    def environment(self, spec: JobSpec, member: str = "worker-0") -> dict[str, str]:
        """As a member printed it with `print_environment`."""
        return json.loads(self.log(spec, member))


PRINT_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


def is_alive(pid: int) -> bool:
    return linux.start_ticks(pid) is not None


def group_of(pid: int) -> int:
    return os.getpgid(pid)
