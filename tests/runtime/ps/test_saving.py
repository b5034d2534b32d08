"""Checkpoints of parameter servers are written under a lease, or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainmaster.gang.protocol import Hello
from trainmaster.runtime.errors import LeaseOver
from trainmaster.runtime.link import AgentLink
from trainmaster.runtime.ps.block import BlockState
from trainmaster.runtime.ps.layout import make_layout
from trainmaster.runtime.ps.optimizer import Sgd
from trainmaster.runtime.ps.process import checkpoints_in
from trainmaster.runtime.ps.saving import Saver
from trainmaster.runtime.ps.terms import Terms


def test_a_server_without_a_lease_saves_nothing(tmp_path: Path) -> None:
    checkpoints = checkpoints_in(tmp_path)
    assert checkpoints is not None
    saver, terms = Saver(checkpoints), Terms(make_layout([("w", (16,))], 64), Sgd(1.0))
    state = BlockState(np.zeros(16, np.float32), np.zeros((0, 16), np.float32), 1, 1, {})
    saver._write(terms, [state], 1)
    saver.check_lease = AgentLink("unix:/nowhere", Hello("t", "server-0", 1, elastic=True)).check_lease
    with pytest.raises(LeaseOver, match="server-0"):
        saver._write(terms, [state], 2)
    assert checkpoints.steps() == [1]
