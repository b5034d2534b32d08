"""Faults that nobody foresaw in what is done for one job, pod, node or launcher: nothing else ends by them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class SetAside:
    """Belongs to the event loop, whose exception handler writes the fault down."""

    def __init__(self) -> None:
        self.told: Callable[[str, Exception], None] = lambda _what, _error: None
        """Operators hear of it: what failed, and how."""

    def note(self, what: str, error: Exception) -> None:
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": f"set aside: {what}", "exception": error})
        self.told(what, error)

    @contextmanager
    def alone(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.note(what, error)

    def follow(self, task: asyncio.Task[None], what: str) -> None:
        """The work of a task of its own."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and isinstance(error := task.exception(), Exception):
                self.note(what, error)

        task.add_done_callback(ended)
