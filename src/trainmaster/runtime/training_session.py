"""A training script's place in the job: lease, progress, checkpoints, stops. Without torch, with or without an agent.

    with runtime.session() as session:
        state = session.restore(default={"w": np.zeros(8)})
        for step in session.steps(1000, save_every=100, state=lambda: state):
            session.report(loss=train_one_step(state))

Unmanaged (`python train.py`) it counts and saves the same way and ends on SIGTERM after saving.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from trainmaster.gang.protocol import EXIT_STOPPED, Hello, Membership, Progress
from trainmaster.model.errors import InputError
from trainmaster.runtime.checkpoint import Checkpoints, Folder, Location
from trainmaster.runtime.errors import IncompatibleState, MisuseError
from trainmaster.runtime.link import AgentLink
from trainmaster.runtime.process_env import ProcessEnv, read_process_env, stretch

RATE_MEMORY = 0.9
"""Weight of the past in the moving average of steps per second."""
FIRST_STEPS = 5
"""These take longer by far (caches, compilation): what they took is forgotten after them."""
WELCOME_TIMEOUT_S = 60.0


class Session:
    """`elastic`: this member goes along with memberships by itself (`trainmaster.runtime.elastic_training`)."""

    def __init__(
        self,
        place: ProcessEnv | None = None,
        *,
        location: Location | Path | str | None = None,
        keep: int = 3,
        elastic: bool = False,
        on_membership: Callable[[Membership], None] | None = None,
    ) -> None:
        self.place = read_process_env() if place is None else place
        self.checkpoints = Checkpoints(_location(location, self.place), keep)
        self.link: AgentLink | None = None
        self.work_done = 0.0
        self.saved: float | None = None
        self.reporting = True
        """Among workers that move together one report is enough: the senior's."""
        self._elastic = elastic
        self._on_membership = on_membership
        self._open = False
        self._terminated = ""
        self._former: Callable[[int, FrameType | None], Any] | int | None = None
        self._loss: float | None = None
        self._rate: float | None = None
        self._steps_here = 0
        """Since the gang last changed."""
        self._complete = False
        self._step_began_s = 0.0
        self._step_began_cpu_s = 0.0

    # -- life ------------------------------------------------------------------------------------------

    def open(self) -> Session:
        if self.place.managed:
            hello = Hello(self.place.agent_token, self.place.member, os.getpid(), self._elastic)
            self.link = AgentLink(self.place.agent, hello, on_membership=self._on_membership or self._accept)
            self.link.open(WELCOME_TIMEOUT_S)
        if threading.current_thread() is threading.main_thread():
            self._former = signal.signal(signal.SIGTERM, self._terminate)
        self._open = True
        return self

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        if self._former is not None:
            signal.signal(signal.SIGTERM, self._former)
        if self.link is not None:
            self.link.close()

    def __enter__(self) -> Session:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self, membership: Membership) -> None:
        """A member that is not elastic works under the membership it was started for."""
        assert self.link is not None
        self.link.joined(membership.version)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        if self._terminated and callable(self._former):
            self._former(number, frame)
        self._terminated = "SIGTERM"

    # -- what the script asks --------------------------------------------------------------------------

    @property
    def stop_requested(self) -> str:
        """Why this process should save and end; empty while it should not."""
        if self.link is not None and self.link.stop_notice is not None:
            return self.link.stop_notice.why or "stop"
        return self._terminated

    def check_lease(self) -> None:
        """`LeaseOver` unless this process may change anything now."""
        if not self._open:
            raise MisuseError("the session is not open; use `with runtime.session() as session:` around the training")
        if self.link is not None:
            self.link.check_lease()

    def steps(
        self,
        total: int | None = None,
        *,
        state: Callable[[], Any] | None = None,
        save_every: int | None = None,
    ) -> Iterator[int]:
        """Step numbers from where the job stands (see `restore`) up to `total`, default `TRAINMASTER_STEPS`.

        After every step: progress is reported; every `save_every` steps, at the end and before a stop `state()` is
        saved. A stop then ends the script with `SystemExit` and the agreed code.
        """
        total = int(self.total_steps(total))
        for step in range(int(self.work_done), total):
            self.begin_step()
            yield step
            self.end_step(step + 1)
            stopping = self.stop_requested
            due = save_every is not None and (step + 1) % save_every == 0
            if state is not None and (due or stopping or step + 1 == total) and self.saved != self.work_done:
                self.save(state())
            if stopping and step + 1 < total:
                self.leave(EXIT_STOPPED)
        self.finish()

    def total_steps(self, total: float | None) -> float:
        """`total`, or what the job was submitted with."""
        total = self.place.steps if total is None else total
        if total is None:
            raise MisuseError("steps() needs a total: none was given, and the job declares none")
        return total

    def begin_step(self) -> None:
        self.check_lease()
        self._step_began_s, self._step_began_cpu_s = time.perf_counter(), time.process_time()

    def end_step(self, work_done: float) -> None:
        """Counts, stretches the step on an emulated accelerator, and reports."""
        self.stretch_step()
        self.count_step(work_done)

    def stretch_step(self) -> None:
        """On an emulated accelerator what was computed since `begin_step` takes so many times longer."""
        stretch(self.place.step_stretch, self._step_began_s, self._step_began_cpu_s)

    def count_step(self, work_done: float) -> None:
        took_s = max(time.perf_counter() - self._step_began_s, 1e-9)
        rate = (work_done - self.work_done) / took_s
        self._steps_here += 1
        first = self._rate is None or self._steps_here <= FIRST_STEPS
        self._rate = rate if first or self._rate is None else RATE_MEMORY * self._rate + (1.0 - RATE_MEMORY) * rate
        self.work_done = work_done
        self.report()

    def report(self, loss: float | None = None, work_done: float | None = None, rate: float | None = None) -> None:
        """What is not given stays as it was. Costs microseconds: the newest figures are sent by another thread."""
        if loss is not None:
            self._loss = float(loss)
        if work_done is not None:
            self.work_done = work_done
        if rate is not None:
            self._rate = rate
        if self.link is not None and self.reporting:
            self.link.report(Progress(self.work_done, self._rate, self._loss, self.saved, self._complete))

    def finish(self) -> None:
        """Training is complete and saved: a stop that comes from now on leaves a finished job."""
        self._complete = True
        self.report()

    def changed_size(self) -> None:
        """What was measured is the speed of another gang."""
        self._rate, self._steps_here = None, 0

    @property
    def rate(self) -> float | None:
        """Steps per second, averaged over the last steps."""
        return self._rate

    # -- checkpoints -----------------------------------------------------------------------------------

    def save(self, state: Any) -> None:
        """Write a checkpoint at the present count of work; only the worker of rank 0 does.

        `CheckpointError` leaves the earlier ones intact.
        """
        self.check_lease()
        if self.place.rank != 0 and not self._elastic:
            return
        self.checkpoints.save(int(self.work_done), {"work_done": self.work_done, "user": state}, self.check_lease)
        self.saved = self.work_done
        self.report()

    def restore(self, default: Any = None) -> Any:
        """The state of the newest whole checkpoint, from which `steps` goes on; `default` when there is none."""
        location = self.checkpoints.location
        if self.place.managed and isinstance(location, Folder) and (self._elastic or self.place.rank == 0):
            location.sweep()  # a job has one writer at a time: what is half-written was left by a dead one
        loaded = self.checkpoints.load()
        if loaded is None:
            if self.saved is None:  # who asks for a checkpoint goes on from one: the job may be preempted
                self.saved = self.work_done
                self.report()
            return default
        if not isinstance(loaded.state, dict) or not {"work_done", "user"} <= loaded.state.keys():
            raise IncompatibleState(
                f"the checkpoint of step {loaded.step} in {self.checkpoints.location} was not written by a session; "
                "choose another location"
            )
        for damage in loaded.skipped:
            print(f"trainmaster: checkpoint passed over: {damage}", file=sys.stderr)
        self.work_done = self.saved = loaded.state["work_done"]
        self.report()
        return loaded.state["user"]

    def leave(self, code: int) -> None:
        """End this process in an orderly way."""
        self.close()
        raise SystemExit(code)


def session(**options: Any) -> Session:
    """A `Session` of this process, by its environment; open it by `with`."""
    return Session(**options)


def _location(given: Location | Path | str | None, place: ProcessEnv) -> Location:
    if given is None:
        return Folder(place.checkpoint_folder)
    if isinstance(given, (str, Path)):
        path = Path(given)
        if path.exists() and not path.is_dir():
            raise InputError(f"the checkpoint location {path} is a file", "a folder", "Choose another one.")
        return Folder(path)
    return given
