"""What can go wrong between a client and the service.

TrainmasterError
├── InputError       the request is wrong (400, 413, 422)
├── Refused          not found, not allowed, not possible now; `status` says which
└── NoService        nobody answers where the service should be
    └── Unavailable  reached, but it cannot answer now, or the connection was lost
"""

from __future__ import annotations

from trainmaster.model.errors import TrainmasterError


class NoService(TrainmasterError):
    """Nobody answers where the service should be."""


class Unavailable(NoService):
    """The service was reached but cannot answer now, or the connection was lost."""


class Refused(TrainmasterError):
    """The service refuses: not found, not allowed, not possible now."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status
