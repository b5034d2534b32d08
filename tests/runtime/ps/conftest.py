"""Parameter-server members start by fork from a process that has NumPy and the runtime loaded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.fork_server import ForkServer


@pytest.fixture(scope="session")
def ps_fork_server() -> Iterator[ForkServer]:
    server = ForkServer(("numpy", "trainmaster.runtime.ps.job"))
    yield server
    server.close()
