"""Training is reproducible, resumes to the same weights, and learns: from the teacher, then beyond it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from trainmaster.learn.dl2.demonstrations import GainRule, check_teacher, demonstrations, record  # noqa: E402
from trainmaster.learn.dl2.evolution import Ascent, evolve  # noqa: E402
from trainmaster.learn.dl2.options import TrainOptions, paper  # noqa: E402
from trainmaster.learn.dl2.rollout import Slots, play  # noqa: E402
from trainmaster.learn.dl2.torch_networks import SharedActor  # noqa: E402
from trainmaster.learn.dl2.trainer import Trainer, slot_reward  # noqa: E402
from trainmaster.learn.parallel import collectors  # noqa: E402
from trainmaster.learn.run_folder import CHECKPOINT  # noqa: E402
from trainmaster.learn.seeds import DEMONSTRATION_SEEDS, TEST_SEEDS, TRAIN_SEEDS, VALIDATION_SEEDS  # noqa: E402
from trainmaster.learn.sizing.trace import SizingSpec, draw_trace, draw_traces  # noqa: E402
from trainmaster.model.errors import InputError  # noqa: E402
from trainmaster.policies.dl2.network import ScoringNetwork  # noqa: E402
from trainmaster.testing.builders import a_job  # noqa: E402

TINY = SizingSpec(servers=4, jobs=6, arrivals_per_slot_max=1)
QUICK = TrainOptions(
    teacher="rule", warm_up_traces=2, warm_up_steps=30, iterations=2, episodes=5, validate_every=1, validation_traces=2,
    hidden=8, context=4,
)  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def trained(options: TrainOptions, **kw) -> Trainer:
    trainer = Trainer(options, [TINY], **kw)
    trainer.run()
    return trainer


def same(one: dict, other: dict) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    first, second = trained(QUICK), trained(QUICK)
    assert same(first.actor.export(), second.actor.export()) and first.history == second.history
    assert not same(first.actor.export(), trained(replace(QUICK, seed=1)).actor.export())


@pytest.mark.parametrize("update", ["clipped", "replay", "evolution"])
def test_a_resumed_run_ends_with_the_same_weights(tmp_path: Path, update: str) -> None:
    options = replace(QUICK, update=update, pairs=2)
    whole = trained(options)
    half = trained(replace(options, iterations=1))
    half.save(tmp_path, "trainmaster learn dl2")
    rest = Trainer(options, [TINY])
    rest.resume(tmp_path)
    rest.run()
    assert same(whole.actor.export(), rest.actor.export())


def test_replayed_decisions_are_judged_by_the_critic_of_today() -> None:
    """A second update from the same memory changes with the critic, not only with what is new."""
    options = replace(QUICK, update="replay", iterations=1, passes=1)
    ends = []
    for shift in (0.0, 100.0):
        trainer = trained(options)
        samples, slots, returns = trainer.memory[0]
        with torch.no_grad():
            for value in trainer.critic.parameters():
                value.mul_(1.0 + shift)
        trainer.iteration += 1
        trainer._replayed(samples, slots, returns)
        ends.append(trainer.actor.export())
    assert not same(*ends)


def test_a_checkpoint_of_other_options_is_refused(tmp_path: Path) -> None:
    trained(replace(QUICK, iterations=0)).save(tmp_path, "")
    with pytest.raises(InputError, match="rate="):
        Trainer(replace(QUICK, rate=0.5), [TINY]).resume(tmp_path)
    (tmp_path / CHECKPOINT).write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a checkpoint"):
        Trainer(QUICK, [TINY]).resume(tmp_path)
    with pytest.raises(InputError, match="no checkpoint found to resume"):
        Trainer(QUICK, [TINY]).resume(tmp_path / "elsewhere")


@pytest.mark.slow
def test_the_number_of_processes_changes_nothing() -> None:
    with collectors(2) as collector:
        parallel = trained(QUICK, collector=collector)
    assert same(trained(QUICK).actor.export(), parallel.actor.export())


@pytest.mark.parametrize(
    "changes",
    [
        {"update": "replay", "exploration": 0.4}, {"update": "replay", "replay": 0}, {"reward": "per-job"},
        {"reward": "progress", "critic": False}, {"warm_up": False}, {"network": "window", "window": 4},
        {"update": "evolution", "pairs": 2},
    ],
)  # fmt: skip
def test_every_switch_of_the_paper_trains(changes: dict) -> None:
    trainer = trained(replace(QUICK, iterations=1, **changes))
    assert np.isfinite(trainer.best_score)
    assert all(np.isfinite(value).all() for value in trainer.actor.export().values())


def test_evolution_follows_the_slope() -> None:
    torch.manual_seed(0)
    weights, ascent = SharedActor(8, 4).export(), Ascent()
    traces = draw_traces(TINY, range(4))
    before = play(traces, ScoringNetwork(weights)).mean()
    for step in range(8):
        rng = np.random.Generator(np.random.PCG64(step))
        weights, _ = evolve(weights, traces, ascent, rng, pairs=8, width=0.5, rate=0.3)
    assert play(traces, ScoringNetwork(weights)).mean() < 0.9 * before


def test_evolution_needs_the_shared_network() -> None:
    with pytest.raises(InputError, match="shared"):
        TrainOptions(update="evolution", network="window")


def test_several_clusters_feed_one_learner() -> None:
    clusters = [TINY, replace(TINY, servers=6)]
    trainer = Trainer(QUICK, clusters)
    trainer.run()
    assert np.isfinite(trainer.best_score)


def test_the_paper_recipe_is_the_papers() -> None:
    options = paper()
    assert (options.hidden, options.replay, options.batch, options.exploration) == (256, 8192, 256, 0.4)
    assert (options.discount, options.entropy, options.rate) == (0.9, 0.1, 1e-4)


def test_rewards() -> None:
    slots = Slots(
        np.zeros((2, 1), np.float32), np.arange(2), np.zeros((2, 1), np.float32), np.array([20.0, 10.0]),
        np.array([0.5, 0.2]), np.zeros(2, np.int64), np.array([False, True]),
    )  # fmt: skip
    np.testing.assert_allclose(slot_reward(slots, QUICK), [-1.0, -0.5])
    np.testing.assert_allclose(slot_reward(slots, replace(QUICK, reward="progress")), [0.5, 0.2])
    np.testing.assert_allclose(slot_reward(slots, replace(QUICK, reward="per-job")), 0.0)


def test_imitating_the_rule_comes_near_it() -> None:
    options = replace(QUICK, warm_up_traces=6, warm_up_steps=300, warm_up_rate=1e-2, hidden=16, kept=0.5)
    trainer = Trainer(options, [TINY])
    trainer.warm_up()
    traces = draw_traces(TINY, range(500, 510))
    assert play(traces, trainer.scorer()).mean() == pytest.approx(play(traces, GainRule()).mean(), rel=0.08)


def test_lessons_lead_to_the_recorded_sizes() -> None:
    trace = draw_trace(TINY, 1)
    sizes, _ = record(trace, "drf")
    taught = demonstrations([trace], [sizes], 1.0, np.random.Generator(np.random.PCG64(0)))
    total = taught.wanted_void.copy()
    owner = np.repeat(
        np.arange(len(taught.samples)), np.diff(np.append(taught.samples.starts, len(taught.samples.rows)))
    )
    np.add.at(total, owner, taught.wanted.sum(axis=1))
    np.testing.assert_allclose(total, 1.0, rtol=1e-5)
    assert not (taught.wanted[~taught.samples.allowed] > 0).any()


def test_bad_teachers_are_told() -> None:
    elastic, rigid = [a_job("a", elastic=(1, 4))], [a_job("a", gpus=2)]
    with pytest.raises(InputError, match="elastic"):
        check_teacher("drf", rigid)
    with pytest.raises(InputError, match="unknown policy"):
        check_teacher("drff", elastic)
    with pytest.raises(InputError, match="itself"):
        check_teacher("dl2", elastic)


def test_uses_of_traces_do_not_meet() -> None:
    last_training_seed = TRAIN_SEEDS + 100_000 * 1000
    starts = [VALIDATION_SEEDS, DEMONSTRATION_SEEDS, TRAIN_SEEDS, last_training_seed, TEST_SEEDS]
    assert starts == sorted(starts) and VALIDATION_SEEDS + 100_000 < DEMONSTRATION_SEEDS


@pytest.mark.parametrize("wrong", [{"reward": "x"}, {"update": "x"}, {"network": "x"}, {"kept": 2.0}, {"batch": 0}])
def test_bad_options_are_told(wrong: dict) -> None:
    with pytest.raises(InputError):
        TrainOptions(**wrong)
