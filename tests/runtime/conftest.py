"""One fork server for all tests of this folder that start torch processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def fork_server() -> Iterator[object]:
    pytest.importorskip("torch")
    from support.fork_server import ForkServer

    server = ForkServer()
    yield server
    server.close()
