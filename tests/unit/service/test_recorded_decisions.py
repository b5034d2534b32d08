"""What a service decided, read from its database, becomes lessons; what cannot be read is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

from service_bench import Bench

from support.dl2_baselines import equal_shares
from trainmaster.cli.learning.learn import learn_app
from trainmaster.engine.persistence import ended_from_record
from trainmaster.learn.dl2.demonstrations import GainRule
from trainmaster.learn.dl2.recorded_decisions import COMMANDS, Lived, lived
from trainmaster.learn.dl2.rollout import play
from trainmaster.learn.sizing.trace import SizingSpec
from trainmaster.model.errors import InputError
from trainmaster.policies.dl2.network import ScoringNetwork
from trainmaster.policies.dl2.weights import load
from trainmaster.stores.sqlite import SqliteStore, read_history

MACHINES = SizingSpec(servers=4, gpus_per_server=4, cpus_per_server=32, slot_s=60.0)
QUICK = ["--iterations", "0", "--set", "warm_up_steps=400", "--set", "warm_up_rate=0.02", "--set", "kept=1.0",
         "--set", "validation_traces=2"]  # fmt: skip


def a_service(home: Path, policy: str, elastic: bool = True, jobs: int = 25) -> Path:
    """The home folder of a service that has run some jobs with this policy."""
    home.mkdir()
    store = SqliteStore(home / "trainmaster.db", durable=False)
    bench = Bench(home, store=store, nodes="v100=16x4", policy=policy, round_ms=60_000)
    rng = np.random.Generator(np.random.PCG64(1))
    for _ in range(jobs):
        workers = {"min": 1, "max": 16} if elastic else {"min": 4, "max": 4}
        bench.submit(steps=int(np.exp(rng.uniform(5.0, 8.0))), steps_per_s={"v100": 4.0}, workers=workers)
        bench.pass_s(20.0)
    while bench.plane.live.columns.job_index_of:
        bench.pass_s(60.0)
    store.close()
    return home


def history_of(home: Path, machines: SizingSpec = MACHINES) -> Lived:
    records, log = read_history(home / "trainmaster.db", 400, COMMANDS)
    return lived([ended_from_record(record) for record in records], log, machines)


@pytest.fixture(scope="module")
def fair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_service(tmp_path_factory.mktemp("homes") / "fair", "drf")


def test_the_log_tells_the_sizes_of_every_slot(fair: Path) -> None:
    found = history_of(fair)
    assert len(found.trace) == 25 and found.trace.spec.servers_max == 0
    assert found.trace.submit_ms[0] == 0 and (np.diff(found.trace.submit_ms) >= 0).all()
    given = {workers for held in found.sizes.values() for workers, _ in held.values()}
    assert min(given) >= 1 and max(given) <= 16 and len(given) > 3, "DRF sizes jobs by how many there are"


def test_a_network_learns_from_it_and_decides_alike(fair: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = ["dl2", "--teacher", f"history:{fair}", "--cluster", "servers=4,gpus=4,cpus=32,slot=60", *QUICK]
    result = CliRunner().invoke(learn_app, [*arguments, "--out", str(out)])
    assert result.exit_code == 0, result.output
    weights = load(out / "weights.npz")
    assert weights.made_by["options"]["teacher"] == "history" and str(fair) not in str(weights.made_by)
    trace, network = history_of(fair).trace, weights.network
    assert isinstance(network, ScoringNetwork)
    imitated, equal = (play([trace], scorer)[0] for scorer in (network, equal_shares()))
    assert imitated == pytest.approx(equal, rel=0.05)
    shortest_first = play([trace], GainRule(power=3.0))[0]
    assert shortest_first < 0.95 * equal, "a trace on which it shows whom one imitates"


def test_what_cannot_teach_is_told(tmp_path: Path, fair: Path) -> None:
    with pytest.raises(InputError, match="the stated machines have 1 GPUs"):
        history_of(fair, SizingSpec(servers=1, gpus_per_server=1, cpus_per_server=32, slot_s=60.0))
    rigid = a_service(tmp_path / "rigid", "fifo", elastic=False, jobs=22)
    few = a_service(tmp_path / "few", "drf", jobs=3)
    (tmp_path / "spoilt").mkdir()
    (tmp_path / "spoilt" / "trainmaster.db").write_text("no database")
    for teacher, says, code in (
        (rigid, "are elastic", 2), (few, "have finished", 2), (tmp_path / "none", "the home folder of a service", 2),
        (tmp_path / "spoilt", "not a database", 1),
    ):  # fmt: skip
        result = CliRunner().invoke(
            learn_app, ["dl2", "--teacher", f"history:{teacher}", "--out", str(tmp_path / "run"), *QUICK]
        )
        assert result.exit_code == code and says in result.output, result.output
        assert not (tmp_path / "run").exists()
