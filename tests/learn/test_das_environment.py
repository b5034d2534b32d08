"""The PettingZoo environment keeps the library's contract, and its reward is what it says."""

import numpy as np
import pytest

pytest.importorskip("pettingzoo")

from pettingzoo.test import parallel_api_test, parallel_seed_test

from trainmaster.learn.das.environment import ORDERING, PLACEMENT, DualAgentEnv
from trainmaster.learn.das.play import Player
from trainmaster.learn.das.world import World
from trainmaster.model.errors import InputError
from trainmaster.policies.das.gaussian import Kernel
from trainmaster.policies.das.network import Agents


def test_parallel_api():
    parallel_api_test(DualAgentEnv(jobs=20), num_cycles=60)


def test_seeds():
    parallel_seed_test(lambda: DualAgentEnv(jobs=12), num_cycles=20)


def test_rewards_add_up_to_the_time_in_the_system():
    env = DualAgentEnv(site="medium", jobs=25)
    env.reset(seed=3)
    total, rng = 0.0, np.random.default_rng(0)
    first = env.world.stream.submit_s[0]
    while env.agents:
        actions = {ORDERING: rng.normal(size=64), PLACEMENT: rng.normal(size=(64, 18))}
        _, rewards, _, _, _ = env.step(actions)
        assert rewards[ORDERING] == rewards[PLACEMENT]
        total += rewards[ORDERING]
    assert env.world.over
    assert first == 0.0
    assert -total == pytest.approx(env.world.completion_s().sum() / 3600.0)


def test_actions_mean_order_and_place():
    """Scores by arrival and affinity to low numbers play as agents that answer so."""

    class ByNumber(Agents):
        def scores(self, jobs, machines):
            return -np.arange(float(len(jobs)))

        def affinities(self, pairs, log_speed):
            return -np.arange(float(len(pairs)))

    env = DualAgentEnv(jobs=30)
    env.reset(seed=1)
    played = Player(World(env.site, env.world.stream), ByNumber({}, 1, "da"), Kernel()).play()
    by_number = np.tile(-np.arange(8.0), (64, 1))
    while env.agents:
        env.step({ORDERING: -np.arange(64.0), PLACEMENT: by_number})
    assert np.allclose(env.world.end_s, played.end_s)


def test_paper_reward_and_bad_names():
    env = DualAgentEnv(jobs=12, reward="paper")
    env.reset(seed=1)
    _, rewards, _, _, _ = env.step({ORDERING: np.zeros(64), PLACEMENT: np.zeros((64, 8))})
    assert rewards[ORDERING] > 0
    with pytest.raises(InputError, match="site"):
        DualAgentEnv(site="huge")
    with pytest.raises(InputError, match="reward"):
        DualAgentEnv(reward="x")
