"""DAS as a policy: keeps the contract, reads only sound weights, falls back with a reason, decides as in its world."""

import json
import zipfile
from io import BytesIO

import numpy as np
import pytest

from trainmaster.engine.engine import Settings
from trainmaster.learn.das.jobs import draw_stream, synthetic_pool
from trainmaster.learn.das.play import Player
from trainmaster.learn.das.world import GPUS_ASKED, SITES, TRUTH, World
from trainmaster.model.cluster import Node, parse_cluster
from trainmaster.model.errors import InputError
from trainmaster.policies import registry
from trainmaster.policies.das.gaussian import Kernel
from trainmaster.policies.das.network import Agents
from trainmaster.policies.das.weights import SHIPPED, load, load_once, to_bytes
from trainmaster.sim.metrics import job_table, summary
from trainmaster.sim.run import simulate
from trainmaster.testing.builders import a_job, a_view
from trainmaster.testing.policy_contract import check_policy


def rewritten(path, about=None, drop=None, arrays=None):
    """The shipped weights with something changed."""
    out = BytesIO()
    with zipfile.ZipFile(SHIPPED) as source, zipfile.ZipFile(out, "w") as archive:
        for name in source.namelist():
            body = source.read(name)
            if name == "about.json" and about:
                body = json.dumps({**json.loads(body), **about}).encode()
            if name == drop:
                continue
            if arrays and name in arrays:
                buffer = BytesIO()
                np.save(buffer, arrays[name])
                body = buffer.getvalue()
            archive.writestr(name, body)
    path.write_bytes(out.getvalue())
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["das", "das:durations=history"])
def test_keeps_the_contract(name: str):
    check_policy(name, seeds=range(8), other_process=False)


def test_shipped_weights_are_small_and_round_trip():
    assert SHIPPED.stat().st_size < 1_000_000
    weights = load(SHIPPED)
    assert weights.agents.variant == "da+mc+rwgp"
    assert "learn das" in weights.made_by["command"]
    assert to_bytes(weights.agents, weights.kernel, weights.made_by) == SHIPPED.read_bytes()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"about": {"version": 99}}, "version 99"),
        ({"about": {"format": "other"}}, "not a weights file of das"),
        ({"about": {"job_features": ["x"]}}, "other job features"),
        ({"about": {"variant": "x"}}, "variant 'x'"),
        ({"about": {"variant": ["da"]}}, "variant "),
        ({"about": {"heads": 7}}, "7 heads"),
        ({"about": {"kernel": {**Kernel().to_json(), "history": float("inf")}}}, "a kernel with"),
        ({"about": {"kernel": {"decay": 2.0}}}, "kernel"),
        ({"drop": "Wq.npy"}, "'Wq' is missing"),
        ({"arrays": {"gain.npy": np.array([np.nan], np.float32)}}, "not finite"),
    ],
)
def test_bad_weights_are_refused_with_what_is_wrong(tmp_path, change, said: str):
    path = rewritten(tmp_path / "w.npz", **change)
    with pytest.raises(InputError, match=said):
        registry.create(f"das:weights={path}")


def test_no_weights_file_at_all(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        registry.create(f"das:weights={tmp_path / 'none.npz'}")
    (tmp_path / "bad.npz").write_text("nonsense")
    with pytest.raises(InputError, match="not a weights file"):
        registry.create(f"das:weights={tmp_path / 'bad.npz'}")
    with pytest.raises(InputError, match="durations"):
        registry.create("das:durations=guess")
    with pytest.raises(InputError, match="fallback"):
        registry.create("das:fallback=das")
    with pytest.raises(InputError, match="unknown policy 'sfj'"):
        registry.create("das:fallback=sfj")


def test_absurd_output_falls_back_and_says_so(tmp_path):
    weights = load(SHIPPED)
    wild = {**weights.agents.weights, "ws": np.full_like(weights.agents.weights["ws"], 1e9)}
    path = tmp_path / "wild.npz"
    path.write_bytes(to_bytes(Agents(wild, weights.agents.heads, weights.agents.variant), weights.kernel, {}))
    view = a_view([a_job("long", seconds=500.0), a_job("short", seconds=5.0)], "v100=1")
    plan = registry.create(f"das:weights={path}").decide(view)
    assert any("das: the agents gave scores" in note and "sjf decided" in note for note in plan.notes)
    assert list(plan.changes) == [1]


def test_shorter_jobs_first_and_gangs_on_one_machine():
    jobs = [a_job("long", gpus=4, seconds=50_000.0), a_job("short", gpus=4, seconds=300.0)]
    plan = registry.create("das").decide(a_view(jobs, "v100=8x4", running=()))
    assert len(plan.changes) == 2
    assert all(given is not None and len(given.parts) == 1 for given in plan.changes.values())
    plan = registry.create("das").decide(a_view(jobs, "v100=4x4"))
    assert list(plan.changes) == [1]


@pytest.mark.parametrize("nodes", ["v100=4x4,k80=4x4", "v100=2x2,k80=1x1"])
def test_prices_change_nothing(nodes: str):
    """Prices were proportional to speed where the agents learned, so that they could learn nothing from them. (They
    were told them once; a service has prices, a simulation of it had none, and they decided differently.)"""
    jobs = [a_job(f"j{k}", gpus=1 + k % 2, seconds=100.0 * k + 50, speeds={"v100": 1.0, "k80": 0.5}) for k in range(4)]
    plans = [
        registry.create("das").decide(a_view(jobs, parse_cluster(nodes, prices)))
        for prices in (None, {"v100": 2.48, "k80": 0.45}, {"v100": 0.45, "k80": 2.48})
    ]
    assert plans[0].changes
    assert plans[0].changes == plans[1].changes == plans[2].changes


def test_of_types_as_fast_as_each_other_the_cheaper_is_taken():
    jobs = [a_job("a", gpus=2, speeds={"v100": 1.0, "k80": 1.0})]
    for prices, wanted in (({"v100": 2.48, "k80": 0.45}, "k80"), ({"v100": 0.45, "k80": 2.48}, "v100")):
        view = a_view(jobs, parse_cluster("v100=8x8,k80=8x4", prices))
        given = registry.create("das").decide(view).changes[0]
        assert given is not None
        assert view.cluster.types[given.accelerator] == wanted


def test_an_empty_fast_machine_is_preferred():
    view = a_view([a_job("a", speeds={"v100": 1.0, "k80": 0.5})], "v100=4x4,k80=4x4")
    plan = registry.create("das").decide(view)
    given = plan.changes[0]
    assert given is not None
    assert [part.node for part in given.parts] == [0]


def test_learns_from_measured_speeds_and_remembers_durations():
    """After a run in a world with slow machines the memo holds what was seen."""
    world = World(SITES["small"], draw_stream([synthetic_pool()], "train", 3, 25, GPUS_ASKED))
    seen = {}

    class Watched(type(registry.create("das"))):
        def decide(self, view):
            plan = super().decide(view)  # type: ignore[misc]
            seen.update(plan.memo.values)
            return plan

    watched = Watched()  # type: ignore[abstract]
    result = simulate(world.job_specs(), world.cluster, watched, Settings(seed=3), TRUTH)
    assert len(result.ended) == 25
    assert 5 <= len(seen["seen"]["jobs"]) <= load_once("").kernel.history
    assert np.std([o["log_speed"] for o in seen["seen"]["jobs"]]) > 0.02
    assert seen["groups"]
    figures = summary(result, job_table(result))
    assert figures["total_cost"] == pytest.approx(sum(end.cost for end in result.ended))


def test_decides_as_in_the_world_it_learned_in():
    """With the same expectations the engine's runs are near those of the world (they look at speeds at other times)."""
    weights = load_once("")

    class Declared(World):
        def expected(self, jobs):
            return np.log(self.stream.work_s[jobs]), np.full(len(jobs), 0.6)

    ratios = []
    for seed in range(3):
        stream = draw_stream([synthetic_pool()], "validation", seed, 60, GPUS_ASKED)
        world = Player(Declared(SITES["medium"], stream), weights.agents, weights.kernel).play()
        result = simulate(world.job_specs(), world.cluster, registry.create("das"), Settings(seed=seed), TRUTH)
        engine_s = np.mean([end.ended_ms - end.spec.submit_ms for end in result.ended]) / 1000.0
        ratios.append(engine_s / world.completion_s().mean())
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.05)


def test_nobody_is_held_for_that_could_not_run_in_an_empty_cluster():
    """No node that is up takes its one worker, although as many GPUs are there and come free soon."""
    nodes = [Node("n0", "v100", 8), Node("n1", "v100", 4), Node("n2", "v100", 4)]
    jobs = [a_job("wide", gpus=8, gpus_each=8, seconds=10), a_job("runs", seconds=50)]
    jobs += [a_job(f"long{k}", seconds=5000) for k in range(3)]
    view = a_view(jobs, nodes, down=[0], running=["runs"])
    plan = registry.create("das").decide(view)
    assert sorted(view.jobs.id(row) for row in plan.changes) == ["long0", "long1", "long2"]
