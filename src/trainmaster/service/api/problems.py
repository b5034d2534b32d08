"""What can go wrong with a request, as errors that carry their HTTP status and the body of a `Problem`."""

from __future__ import annotations

from collections.abc import Mapping

from trainmaster.engine.ports import StoreError
from trainmaster.model.errors import InputError, TrainmasterError
from trainmaster.wire.api import Problem


class Refusal(TrainmasterError):
    """A request that cannot be granted. Nothing was changed."""

    status = 409

    def __init__(self, what: str, *, where: str = "", expected: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.problem = Problem(what=what, where=where, expected=expected, remedy=remedy)


class NotFound(Refusal):
    status = 404


class Conflict(Refusal):
    status = 409


class Forbidden(Refusal):
    status = 403


class Unauthorized(Refusal):
    status = 401


class TooMany(Refusal):
    """Too many of these at once; ask again."""

    status = 429


class Unavailable(Refusal):
    """Not now: the store fails, or the service is stopping. What was accepted before is safe; ask again."""

    status = 503


def unavailable(error: StoreError) -> Unavailable:
    return Unavailable(
        f"storage unavailable: {error}",
        expected="a database that can be read and written",
        remedy="Nothing was changed, and nothing accepted before is lost; try again when it is mended.",
    )


def problem_of(error: TrainmasterError) -> tuple[int, Problem]:
    """Status and body of any known error."""
    if isinstance(error, Refusal):
        return error.status, error.problem
    if isinstance(error, InputError):
        where = error.column or ("" if error.file is None else str(error.file))
        return 422, Problem(what=error.what, where=where, expected=error.expected, remedy=error.remedy)
    if isinstance(error, StoreError):
        return problem_of(unavailable(error))
    return 500, Problem(what=str(error))


def headers_of(status: int) -> Mapping[str, str]:
    """What a refusal with this status has to say in its headers."""
    return _HEADERS.get(status, {})


_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "2"}, 503: {"Retry-After": "1"}}
