"""Both backends keep the promises of the port; a backend that breaks one is caught."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.backend_benches import LocalBench, SimulatedBench
from trainmaster.model.command import Command, Launch, Stop
from trainmaster.model.job import JobId
from trainmaster.sim.backend import SimulatedBackend
from trainmaster.testing.backend_contract import CHECKS, ContractBroken, check_backend


def test_the_simulated_backend_keeps_the_contract() -> None:
    done = check_backend(SimulatedBench())
    assert len(done) == len(CHECKS) - 1  # a simulated job has nothing to be stubborn with


@pytest.mark.slow
def test_the_local_backend_keeps_the_contract(tmp_path: Path) -> None:
    bench = LocalBench(tmp_path)
    try:
        assert len(check_backend(bench)) == len(CHECKS)
    finally:
        bench.close()


def _forget_generation(backend: SimulatedBackend, job_id: JobId) -> None:
    jobs, job = backend.core.jobs, backend.number(job_id)
    jobs.generation[job] = jobs.seen_seq[job] = 0


class Forgetful(SimulatedBench):
    """Starts an attempt again although it has ended."""

    def perform(self, command: Command) -> None:
        if isinstance(command, Launch) and command.job_id not in self.backend.running:
            _forget_generation(self.backend, command.job_id)
        super().perform(command)


class Deaf(SimulatedBench):
    """Does not fence a launch that its stop has overtaken."""

    def perform(self, command: Command) -> None:
        super().perform(command)
        if isinstance(command, Stop):
            _forget_generation(self.backend, command.job_id)


class Boastful(SimulatedBench):
    """Takes every node for reachable, and every command for seen."""

    def observe(self) -> None:
        self.backend.core.seen_up_to = 0
        super().observe()


@pytest.mark.parametrize("broken", [Forgetful, Deaf, Boastful])
def test_a_broken_backend_is_caught(broken: type[SimulatedBench]) -> None:
    with pytest.raises(ContractBroken):
        check_backend(broken())
