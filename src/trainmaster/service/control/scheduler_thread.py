"""The thread that owns the control plane: takes what has come, in one batch, and sleeps until more comes or is due.

Requests wait for the batch after the one that is under way, so the busier the service, the more requests share a
commit. Reports of progress alone do not wake it at once: they are gathered for a moment.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from trainmaster.model import event as ev
from trainmaster.model.units import MS_PER_S, NEVER_MS
from trainmaster.service.api.problems import Unavailable
from trainmaster.service.control.control_plane import ControlPlane, Request
from trainmaster.service.control.gateway import unpacked

T = TypeVar("T")

PROGRESS_S = 1.0
"""Reports of progress wait at most so long for others."""
MAX_SLEEP_S = 60.0
_Future = asyncio.Future[Any]
_Loop = asyncio.AbstractEventLoop
_Answered = Callable[[Any], object]
_Waiting = tuple[Request[Any], tuple[_Loop, _Future] | _Answered]


class Driver:
    """`start` begins the thread; `deliver` and `put` may be called from any thread, `ask` from any event loop."""

    def __init__(self, plane: ControlPlane, fatal: Callable[[BaseException], None]) -> None:
        """`fatal` is told when the thread dies of a fault of its own: the service must end then."""
        self.plane = plane
        self._fatal = fatal
        self._condition = threading.Condition()
        self._requests: list[_Waiting] = []
        self._gathered: dict[_Loop, list[_Waiting]] = {}
        self._events: list[ev.Event] = []
        self._progress: dict[tuple[str, int], ev.Progressed] = {}
        self._progress_due_s = float("inf")
        self._stopping = False
        self._listeners: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()
        self._thread = threading.Thread(target=self._run, name="control-plane", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the batch that is under way. What was not answered is refused."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join()

    # -- from other threads --------------------------------------------------------------------------

    def deliver(self, event: ev.Event) -> None:
        """A report of the backend."""
        with self._condition:
            if isinstance(event, ev.Progressed):
                self._progress[event.job_id, event.generation] = event
                if self._progress_due_s == float("inf"):
                    self._progress_due_s = time.monotonic() + PROGRESS_S
                    self._condition.notify()
            else:
                self._events.append(event)
                self._condition.notify()

    def put(self, request: Request[Any], answered: _Answered) -> None:
        """`answered` is called in the driver's thread with the answer or the error."""
        self._check_open()
        with self._condition:
            self._requests.append((request, answered))
            self._condition.notify()

    async def ask(self, request: Request[T]) -> T:
        loop = asyncio.get_running_loop()
        future: _Future = loop.create_future()
        self._check_open()
        # What the loop reads in one round goes over together: it shares a batch, and wakes the thread once.
        gathered = self._gathered.setdefault(loop, [])
        if not gathered:
            loop.call_soon(self._hand_over, loop)
        gathered.append((request, (loop, future)))
        return unpacked(await future)

    def _check_open(self) -> None:
        if self._stopping:
            raise Unavailable("the scheduler is stopping", remedy="Ask again in a few seconds.")

    def _hand_over(self, loop: _Loop) -> None:
        gathered = self._gathered.pop(loop)
        with self._condition:
            self._requests += gathered
            self._condition.notify()

    async def news(self, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        listener = (loop, future)
        self._listeners.add(listener)
        try:
            await asyncio.wait_for(future, wait_s)
        except TimeoutError:
            pass
        finally:
            self._listeners.discard(listener)

    # -- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait():
                self._batch()
        except BaseException as error:
            self._fatal(error)

    def _wait(self) -> bool:
        """Sleep until there is something to do; False when it is time to end."""
        with self._condition:
            while not self._stopping and not self._requests and not self._events:
                sleep_s = self._sleep_s()
                if sleep_s <= 0:
                    break
                self._condition.wait(sleep_s)
            return not self._stopping

    def _sleep_s(self) -> float:
        wake_ms = self.plane.next_wake_ms
        due_s = MAX_SLEEP_S if wake_ms >= NEVER_MS // 4 else (wake_ms - self.plane.now_ms) / MS_PER_S
        return min(due_s, self._progress_due_s - time.monotonic(), MAX_SLEEP_S)

    def _batch(self) -> None:
        with self._condition:
            waiting, self._requests = self._requests, []
            events, self._events = self._events, []
            progress = sorted(self._progress.items())
            self._progress.clear()
            self._progress_due_s = float("inf")
        # What a job measured comes before how it ended.
        reports: list[ev.Event] = [*(event for _, event in progress), *events]
        begun = time.perf_counter()
        before = self.plane.log_number
        outcomes = self.plane.batch([request for request, _ in waiting], reports)
        self.plane.tally.batch_s += time.perf_counter() - begun
        _answer([whom for _, whom in waiting], outcomes)
        if self.plane.log_number != before:
            for loop, future in list(self._listeners):
                loop.call_soon_threadsafe(_resolve, [future], [None])


def _answer(whom: Sequence[tuple[_Loop, _Future] | _Answered], outcomes: Sequence[Any]) -> None:
    """Each event loop is woken once, for all that waits in it."""
    by_loop: dict[_Loop, tuple[list[_Future], list[Any]]] = {}
    for waits, outcome in zip(whom, outcomes, strict=True):
        if isinstance(waits, tuple):
            futures, told = by_loop.setdefault(waits[0], ([], []))
            futures.append(waits[1])
            told.append(outcome)
        else:
            waits(outcome)
    for loop, (futures, told) in by_loop.items():
        loop.call_soon_threadsafe(_resolve, futures, told)


def _resolve(futures: Sequence[_Future], outcomes: Sequence[Any]) -> None:
    for future, outcome in zip(futures, outcomes, strict=True):
        if not future.done():  # a client may have gone away
            future.set_result(outcome)
