"""How routes reach the control plane: one question, one answer. The live driver is one gateway, a test's another."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from trainmaster.service.control.control_plane import ControlPlane, Request

T = TypeVar("T")


class Gateway(Protocol):
    async def ask(self, request: Request[T]) -> T:
        """The answer, after everything it depends on was committed; raises what refuses the request."""
        ...

    async def news(self, wait_s: float) -> None:
        """Return when something new was committed, or after this time."""
        ...


class InlineGateway:
    """Asks the control plane at once, in the caller's thread: for simulations and tests."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    async def ask(self, request: Request[T]) -> T:
        return unpacked(self.plane.batch([request])[0])

    async def news(self, wait_s: float) -> None:  # noqa: ARG002 - time does not pass here
        return


def unpacked(outcome: Any) -> Any:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
