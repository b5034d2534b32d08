"""The Gymnasium environment keeps Gymnasium's contract, is deterministic, and pays what completion times cost."""

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env  # noqa: E402

import trainmaster.learn.environment  # noqa: E402, F401  (registers it)
from trainmaster.learn.environment import SizingEnv  # noqa: E402
from trainmaster.learn.sizing.trace import SizingSpec, draw_trace  # noqa: E402
from trainmaster.model.errors import InputError  # noqa: E402

TINY = SizingSpec(servers=4, jobs=5, arrivals_per_slot_max=1)


def random_episode(env: SizingEnv, trace: int, seed: int) -> tuple[list[float], dict]:
    rng = np.random.Generator(np.random.PCG64(seed))
    _, info = env.reset(options={"trace": trace})
    rewards, over = [], False
    while not over:
        possible = np.flatnonzero(info["action_mask"])
        observation, reward, over, _, info = env.step(rng.choice(possible))
        assert env.observation_space.contains(observation)
        rewards.append(reward)
    return rewards, info


@pytest.mark.filterwarnings("ignore:.*infinity.*")
def test_gymnasium_accepts_it() -> None:
    env = gymnasium.make("trainmaster/Sizing-v0", spec=TINY)
    check_env(env.unwrapped, skip_render_check=True)


def test_the_same_seed_gives_the_same_episode() -> None:
    env = SizingEnv(TINY)
    one, other = random_episode(env, 3, 1), random_episode(SizingEnv(TINY), 3, 1)
    assert one[0] == other[0] and one[1]["mean_completion_s"] == other[1]["mean_completion_s"]
    first, _ = SizingEnv(TINY).reset(seed=4)
    second, _ = SizingEnv(TINY).reset(seed=4)
    np.testing.assert_array_equal(first, second)


def test_the_return_is_minus_the_completion_times() -> None:
    rewards, info = random_episode(SizingEnv(TINY), 7, 2)
    submit_s = draw_trace(TINY, 7).submit_ms / 1000
    waited = (np.ceil(submit_s / TINY.slot_s) * TINY.slot_s - submit_s).sum()
    total = -sum(rewards) * TINY.slot_s + waited
    assert total / TINY.jobs == pytest.approx(info["mean_completion_s"], rel=1e-6)


def test_progress_adds_up_to_one_for_each_job() -> None:
    rewards, _ = random_episode(SizingEnv(TINY, reward="progress"), 7, 2)
    assert sum(rewards) == pytest.approx(TINY.jobs)


def test_an_impossible_action_ends_the_slot() -> None:
    env = SizingEnv(TINY)
    _, info = env.reset(options={"trace": 1})
    impossible = int(np.flatnonzero(info["action_mask"] == 0)[-1])
    _, reward, *_ = env.step(np.int64(impossible))
    assert reward < 0


@pytest.mark.parametrize("wrong", [{"reward": "fame"}, {"window": 0}])
def test_bad_choices_are_told(wrong: dict) -> None:
    with pytest.raises(InputError):
        SizingEnv(TINY, **wrong)
