"""How routes reach the control plane: The leader's session is a gateway, tests have others."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from trainmaster.service.control.control_plane import Request

T = TypeVar("T")


class Gateway(Protocol):
    async def ask(self, request: Request[T]) -> T:
        """The answer, after everything it depends on was committed; raises what refuses the request."""
        ...

    async def news(self, wait_s: float) -> None:
        """Return when something new was committed, or after this time."""
        ...


class TimelyGateway(Gateway, Protocol):
    async def ask_soon(self, request: Request[T], wait_s: float) -> T | None:
        """As `ask`; None when there is no answer in time."""
        ...


def unpacked(outcome: Any) -> Any:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
