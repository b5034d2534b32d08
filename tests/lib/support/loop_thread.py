"""An event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading

import uvloop

from trainmaster.backends.kubernetes.api.loop_thread import LoopPortal


class LoopThread(LoopPortal):
    def __init__(self, name: str = "trainmaster-kubernetes") -> None:
        super().__init__(uvloop.new_event_loop())
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def close(self) -> None:
        """End what is left, then the thread."""
        if not self._thread.is_alive():
            return
        self.call(_cancel_others(), 10.0)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10.0)
        self.loop.close()


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
