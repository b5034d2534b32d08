"""One network, three computations: PyTorch, NumPy and the incremental kernels agree."""

from dataclasses import replace

import numpy as np
import pytest

from trainmaster.learn.dl2.episode import Episode
from trainmaster.learn.dl2.rollout import advantages, collect, play
from trainmaster.learn.sizing.batch import SlotBatch
from trainmaster.learn.sizing.trace import SizingSpec, draw_traces
from trainmaster.policies.dl2.features import N_GLOBAL, N_JOB
from trainmaster.policies.dl2.incremental import IncrementalNetwork
from trainmaster.policies.dl2.network import ScoringNetwork, WindowNetwork

torch = pytest.importorskip("torch")

from trainmaster.learn.dl2.torch_networks import SharedActor, WindowActor, log_softmax, owners  # noqa: E402

TINY = SizingSpec(servers=6, jobs=8, arrivals_per_slot_max=2)


class Asked:
    """Scores of `answer(rows, globals)`, decision by decision."""

    def __init__(self, answer) -> None:
        self.answer, self.rows = answer, []

    def scores(self, rows: np.ndarray, starts: np.ndarray, globals_: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.rows.append(rows.copy())
        return self.answer(rows, starts, globals_)


def drawn(seed: int, counts: tuple[int, ...] = (3, 1, 7)) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.Generator(np.random.PCG64(seed))
    rows = rng.normal(size=(sum(counts), N_JOB)).astype(np.float32)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    return rows, starts, rng.normal(size=(len(counts), N_GLOBAL)).astype(np.float32)


@pytest.mark.parametrize("kind", ["shared", "window"])
def test_torch_and_numpy_agree(kind: str) -> None:
    torch.manual_seed(1)
    actor = SharedActor(16, 8) if kind == "shared" else WindowActor(32, 5)
    network = ScoringNetwork(actor.export()) if kind == "shared" else WindowNetwork(actor.export(), 5)
    rows, starts, globals_ = drawn(2)
    owner, counts = owners(starts, len(rows))
    with torch.no_grad():
        scores, void = actor(torch.from_numpy(rows), owner, counts, torch.from_numpy(globals_))
    here, here_void = network.scores(rows, starts, globals_)
    np.testing.assert_allclose(here, scores.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(here_void, void.numpy(), rtol=1e-4, atol=1e-4)


def test_incremental_scores_follow_changes() -> None:
    torch.manual_seed(3)
    network = ScoringNetwork(SharedActor(16, 8).export())
    rows, _, globals_ = drawn(4, (6,))
    incremental, out = IncrementalNetwork(network.weights, 6), np.zeros((6, 3), np.float32)
    for i in range(6):
        incremental.changed(i, rows, i, True)
    rng = np.random.Generator(np.random.PCG64(5))
    for step in range(50):
        i = step % 6
        rows[i] = rng.normal(size=N_JOB)
        incremental.changed(i, rows, i, False)
        void = incremental.score(6, globals_[0], np.arange(6), out)
        wanted, wanted_void = network.scores(rows, np.zeros(1, np.int64), globals_)
        np.testing.assert_allclose(out, wanted, rtol=1e-3, atol=1e-3)
        assert void == pytest.approx(float(wanted_void[0]), abs=1e-3)


def test_the_shared_network_does_not_mind_the_order_of_jobs() -> None:
    torch.manual_seed(6)
    network = ScoringNetwork(SharedActor(16, 8).export())
    rows, starts, globals_ = drawn(7, (9,))
    order = np.random.Generator(np.random.PCG64(8)).permutation(9)
    one, void = network.scores(rows, starts, globals_)
    other, other_void = network.scores(rows[order], starts, globals_)
    np.testing.assert_allclose(one[order], other, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(void, other_void, rtol=1e-4, atol=1e-5)


def test_compiled_episodes_are_those_played_step_by_step() -> None:
    torch.manual_seed(9)
    network = ScoringNetwork(SharedActor(16, 8).export())
    traces = draw_traces(TINY, range(3))
    np.testing.assert_allclose(play(traces, network), play(traces, Asked(network.scores)), rtol=1e-3)


@pytest.mark.parametrize("compiled", [True, False])
def test_recorded_chances_are_those_of_the_network(compiled: bool) -> None:
    torch.manual_seed(10)
    actor = SharedActor(16, 8)
    rng, network = np.random.Generator(np.random.PCG64(1)), ScoringNetwork(actor.export())
    scorer = network if compiled else Asked(network.scores)
    samples, slots, mean_s = collect(draw_traces(TINY, range(3)), scorer, rng, 0.5)
    owner, counts = owners(samples.starts, len(samples.rows))
    with torch.no_grad():
        scores, void = actor(torch.from_numpy(samples.rows), owner, counts, torch.from_numpy(samples.globals_))
        log_all, log_void = log_softmax(scores, void, torch.from_numpy(samples.allowed), owner)
    total = np.exp(log_void.numpy())
    np.add.at(total, owner.numpy(), np.exp(log_all.numpy()).sum(axis=1))
    np.testing.assert_allclose(total, 1.0, rtol=1e-4)
    stopped = samples.chosen_row < 0
    chosen = samples.starts + np.where(stopped, 0, samples.chosen_row)
    action = np.where(stopped, 0, samples.action)
    wanted = np.where(stopped, log_void.numpy(), log_all.numpy()[chosen, action])
    np.testing.assert_allclose(samples.log_p, wanted, rtol=1e-3, atol=1e-3)
    assert samples.allowed[chosen[~stopped], action[~stopped]].all()
    assert slots.last.sum() == 3 and len(mean_s) == 3
    assert samples.slot.max() < len(slots) and (slots.present > 0).all()
    assert (samples.own_progress >= 0).all() and samples.own_progress.max() > 0


def test_advantages_against_the_definition() -> None:
    rng = np.random.Generator(np.random.PCG64(2))
    reward, value = rng.normal(size=7), rng.normal(size=7)
    last = np.array([False, False, True, False, False, False, True])
    advantage, target = advantages(reward, value, last, 0.9, 0.8)
    for t in range(7):
        expected, weight, k = 0.0, 1.0, t
        while True:
            following = 0.0 if last[k] else value[k + 1]
            expected += weight * (reward[k] + 0.9 * following - value[k])
            if last[k]:
                break
            weight, k = weight * 0.9 * 0.8, k + 1
        assert advantage[t] == pytest.approx(expected)
    np.testing.assert_allclose(target, advantage + value)


@pytest.mark.parametrize(("above", "grows"), [(-0.01, True), (0.01, False)])
def test_stopping_needs_more_chance_than_all_actions_together(above: float, grows: bool) -> None:
    batch = SlotBatch(draw_traces(replace(TINY, jobs=1), [1]))
    options = int(batch.decisions().allowed.sum())
    asked = Asked(lambda rows, *_: (np.zeros((len(rows), 3)), [np.log(options) + above]))
    Episode(batch.world, None, asked, 0, batch.state, True, 0.0, 0.0).play(np.random.Generator(np.random.PCG64(0)))
    sizes = [rows[0, 12:14].sum() for rows in asked.rows]
    assert (max(sizes) > sizes[0]) == grows


@pytest.mark.parametrize("exploration", [0.0, 1.0])
def test_job_aware_exploration_gives_what_is_lacking(exploration: float) -> None:
    """The network wants nothing but workers: from ten workers a server on it is overridden."""
    wants_workers = Asked(lambda rows, *_: (np.tile([9.0, -90.0, -90.0], (len(rows), 1)), [-50.0]))
    rng = np.random.Generator(np.random.PCG64(1))
    samples, _, _ = collect(draw_traces(replace(TINY, jobs=1), [1]), wants_workers, rng, 1.0, exploration)
    workers, servers = (np.expm1(samples.rows[:, feature] * 3.0) for feature in (12, 13))
    lacking = (workers >= 9.99 * servers) & samples.allowed[:, 1]
    assert lacking.any()
    assert (samples.action[lacking] == 1).all() == bool(exploration)
    assert (samples.action[~lacking] != 1).all()
