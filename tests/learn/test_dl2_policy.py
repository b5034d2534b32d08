"""The policy dl2: bad weights are told, absurd scores fall back to the teacher, odd clusters and jobs are served."""

import json
import warnings
import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from trainmaster.engine.engine import Settings
from trainmaster.learn.dl2.evaluate import UNSEEN_KINDS, completion_s
from trainmaster.learn.dl2.rollout import play
from trainmaster.learn.sizing.trace import SizingSpec, draw_trace, draw_traces
from trainmaster.model.errors import InputError, TrainmasterError
from trainmaster.policies import registry
from trainmaster.policies.dl2.features import N_GLOBAL, N_JOB
from trainmaster.policies.dl2.network import ScoringNetwork, shapes
from trainmaster.policies.dl2.weights import SHIPPED, load, load_once, to_bytes
from trainmaster.sim.run import simulate
from trainmaster.sim.truth import TruthOptions
from trainmaster.testing.builders import a_job, a_view

SPEC = SizingSpec(servers=10, jobs=10, arrivals_per_slot_max=1)


def arrays(**changes: np.ndarray) -> dict[str, np.ndarray]:
    drawn = {name: np.zeros(shape, np.float32) for name, shape in shapes(4, 2).items()}
    return {**drawn, **changes}


def written(path: Path, weights: dict[str, np.ndarray], network: str = "shared", window: int = 0) -> Path:
    path.write_bytes(to_bytes(weights, network, window, {}))
    return path


def edited(path: Path, **changes: object) -> Path:
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    about = {**json.loads(content["about.json"]), **changes}
    content["about.json"] = json.dumps(about).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def with_array(path: Path, name: str, value: np.ndarray) -> Path:
    body = BytesIO()
    np.save(body, value)
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the name is there already; the later one counts
        archive.writestr(f"{name}.npy", body.getvalue())
    return path


def other_compression(path: Path) -> Path:
    """The file with a compression in its directory that nobody has."""
    data = bytearray(path.read_bytes())
    first = data.find(b"PK\x01\x02")
    data[first + 10] = 77
    path.write_bytes(bytes(data))
    return path


def test_a_teacher_that_does_not_exist_is_told_before_it_is_needed() -> None:
    with pytest.raises(InputError, match="unknown policy 'dfr'"):
        registry.create("dl2:teacher=dfr")


def test_weights_survive_the_file_byte_for_byte(tmp_path: Path) -> None:
    network = load(SHIPPED).network
    assert isinstance(network, ScoringNetwork)
    first = written(tmp_path / "a.npz", dict(network.weights))
    again = load(first).network
    for name, value in network.weights.items():
        np.testing.assert_array_equal(again.weights[name], value)
    assert first.read_bytes() == written(tmp_path / "b.npz", dict(network.weights)).read_bytes()


def test_the_shipped_weights_say_how_they_were_made() -> None:
    made_by = load(SHIPPED).made_by
    assert "learn dl2" in str(made_by["command"])
    assert SHIPPED.stat().st_size < 100_000


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda p: p.write_bytes(b"not an archive") and p, "not a weights file"),
        (lambda p: p.unlink() or p, "cannot read"),
        (lambda p: edited(p, version=99), "version 99; expected version 1"),
        (lambda p: edited(p, format="other"), "not a weights file"),
        (lambda p: edited(p, job_features=["age"]), "other job features"),
        (lambda p: edited(p, network="tree"), "network 'tree'"),
        (lambda p: edited(p, network="window", window="many"), "network 'window'"),
        (lambda p: edited(p, network="window", window=float("inf")), "network 'window'"),
        (lambda p: with_array(p, "U", np.zeros(3, [("a", "f4"), ("b", "f4")])), "not a weights file"),
        (lambda p: with_array(p, "U", np.full((2, 2), "1")), "not a weights file"),
        (lambda p: other_compression(p), "not a weights file"),
        (lambda p: written(p, arrays(A=np.zeros((5, 3), np.float32))), "weight 'A' is (5, 3)"),
        (lambda p: written(p, arrays(b=np.full(1, np.nan, np.float32))), "not finite"),
    ],
)  # fmt: skip
def test_bad_weights_are_told(tmp_path: Path, spoil, says: str) -> None:
    path = spoil(written(tmp_path / "w.npz", arrays()))
    with pytest.raises(InputError) as caught:
        registry.create(f"dl2:weights={path}")
    assert says in str(caught.value) and "w.npz" in str(caught.value)


@pytest.mark.parametrize("options", ["error=1.5", "teacher=dl2", "profile_points=0"])
def test_bad_options_are_told(options: str) -> None:
    with pytest.raises(InputError):
        registry.create(f"dl2:{options}")


def test_a_network_that_stops_at_once_gives_way_to_the_teacher(tmp_path: Path) -> None:
    lazy = written(tmp_path / "lazy.npz", arrays(b=np.full(1, 1e6, np.float32)))
    view = a_view([a_job("a", elastic=(1, 8)), a_job("b", elastic=(1, 8))], cluster="v100=16x4")
    plan = registry.create(f"dl2:weights={lazy}").decide(view)
    taught = registry.create("drf").decide(view)
    assert plan.changes == taught.changes
    assert "drf decided" in plan.notes[-1] and "stop at once" in plan.notes[-1]


def test_scores_that_overflow_give_way_to_the_teacher(tmp_path: Path) -> None:
    huge = arrays(S=np.full((N_JOB, 3), 3e38, np.float32))
    path = written(tmp_path / "huge.npz", huge)
    view = a_view([a_job("a", elastic=(1, 8)), a_job("b", elastic=(1, 8))], cluster="v100=16x4")
    plan = registry.create(f"dl2:weights={path},teacher=srtf").decide(view)
    assert "not finite; srtf decided" in plan.notes[-1]


def test_more_jobs_than_the_window_all_run(tmp_path: Path) -> None:
    window, hidden = 3, 4
    rng = np.random.Generator(np.random.PCG64(1))
    dense = {
        "P": rng.normal(size=(window * N_JOB + N_GLOBAL, hidden)), "p": np.zeros(hidden),
        "Q": rng.normal(size=(hidden, hidden)), "q": np.zeros(hidden),
        "R": rng.normal(size=(hidden, 3 * window + 1)), "r": np.zeros(3 * window + 1),
    }  # fmt: skip
    dense["r"][0] = -1e3  # never stops of its own
    path = written(tmp_path / "w.npz", {k: v.astype(np.float32) for k, v in dense.items()}, "window", window)
    view = a_view([a_job(f"j{k}", elastic=(1, 4)) for k in range(6)], cluster="v100=12x4")
    plan = registry.create(f"dl2:weights={path}").decide(view)
    assert sorted(plan.changes) == list(range(6))
    sizes = [given.workers for given in plan.changes.values() if given is not None]
    assert sum(sizes) == 12 and sizes[3:] == [1, 1, 1]  # those beyond the window keep their floor


def test_the_engine_and_the_environment_agree_on_the_learned_policy() -> None:
    traces = draw_traces(SPEC, range(2))
    network = load_once("").network
    assert isinstance(network, ScoringNetwork)
    here = play(traces, network)
    there = [completion_s(trace, "dl2:fitted=true,error=0.1") for trace in traces]
    np.testing.assert_allclose(here, there, rtol=0.02)


def test_it_beats_equal_shares_also_on_kinds_and_clusters_it_never_saw() -> None:
    spec = replace(SPEC, servers=16, jobs=16, kinds=UNSEEN_KINDS, gpus_per_server=4, cpus_per_server=16)
    traces = [draw_trace(spec, seed) for seed in (1, 2)]
    learned = np.mean([completion_s(trace, "dl2") for trace in traces])
    equal = np.mean([completion_s(trace, "drf") for trace in traces])
    assert learned < 0.95 * equal


def test_failing_nodes_lose_no_job() -> None:
    trace = draw_trace(SPEC, 4)
    truth = TruthOptions(node_mtbf_ms=40_000_000, node_repair_ms=3_000_000)
    result = simulate(trace.job_specs(), SPEC.cluster(), registry.create("dl2"), Settings(round_ms=1_200_000), truth)
    assert len(result.ended) == len(trace) and result.plans_refused == 0


def test_between_slots_it_acts_at_once() -> None:
    trace = draw_trace(SPEC, 5)
    run = [
        simulate(trace.job_specs(), SPEC.cluster(), registry.create(name), Settings(round_ms=1_200_000))
        for name in ("dl2", "dl2:between_slots=true")
    ]
    first = [min(end.first_start_ms for end in result.ended) for result in run]
    assert all(end.first_start_ms % 1_200_000 == 0 for end in run[0].ended)
    assert any(end.first_start_ms % 1_200_000 for end in run[1].ended)
    assert first[1] <= first[0]


def test_a_run_that_does_not_end_says_in_words_where_its_jobs_are(monkeypatch) -> None:
    """Jobs of thirty years: the simulator gives up after so many decisions that change nothing."""
    monkeypatch.setattr("trainmaster.sim.run.MAX_IDLE_WAKES", 50)
    endless = a_job("endless", seconds=1e9, elastic=(1, 4))
    with pytest.raises(TrainmasterError, match="endless is running"):
        simulate([endless], a_view([endless], "v100=4").cluster, registry.create("dl2"), Settings(round_ms=1000))
