"""What benches for `check_backend` share whose backend puts its events into a queue."""

from __future__ import annotations

import queue
import time
from typing import Any

from trainmaster.model import event as ev
from trainmaster.model.command import Command

STUBBORN = (
    "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
)


class QueueBench:
    backend: Any
    events: queue.Queue[ev.Event]
    wait_s: float
    quiet_s: float

    def perform(self, command: Command) -> None:
        self.backend.perform(command)

    def observe(self) -> None:
        self.backend.observe()

    def next_event(self) -> ev.Event:
        try:
            return self.events.get(timeout=self.wait_s)
        except queue.Empty:
            raise TimeoutError(f"no event within {self.wait_s} s") from None

    def quiet(self) -> list[ev.Event]:
        time.sleep(self.quiet_s)
        found = []
        while not self.events.empty():
            found.append(self.events.get())
        return found
