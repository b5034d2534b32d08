"""DL2's speed: inferences per second of the environment in three forms, and the latency of a decision at 40 jobs."""

from __future__ import annotations

import time

import numpy as np

from support.sizing_choices import choose
from trainmaster.learn.dl2.rollout import play
from trainmaster.learn.environment import SizingEnv
from trainmaster.learn.sizing.batch import SlotBatch
from trainmaster.learn.sizing.trace import SizingSpec, draw_traces
from trainmaster.policies import registry
from trainmaster.policies.dl2.network import ScoringNetwork
from trainmaster.policies.dl2.weights import load_once
from trainmaster.testing.builders import a_job, a_view


def cpu_s(work) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


class Plain:
    """The network as any other scorer, asked for each decision."""

    def __init__(self, network: ScoringNetwork) -> None:
        self.scores = network.scores


def count_inferences(spec: SizingSpec, seeds: range, network: ScoringNetwork) -> int:
    batch, n = SlotBatch(draw_traces(spec, seeds)), 0
    while len(batch.alive):
        decisions = batch.decisions()
        n += len(decisions.episodes)
        scores, void = network.scores(decisions.rows, decisions.starts, decisions.globals_)
        batch.apply(decisions, *choose(decisions, scores, void))
    return n


def one_by_one(spec: SizingSpec, network: ScoringNetwork, seed: int) -> int:
    """The environment as Gymnasium offers it, one action and one NumPy inference at a time."""
    env, n, over = SizingEnv(spec, window=60), 0, False
    env.reset(options={"trace": seed})
    start = np.zeros(1, np.int64)
    while not over:
        now = env._now
        assert now is not None
        scores, void = network.scores(now.rows, start, now.globals_)
        row, action = choose(now, scores, void)
        _, _, over, _, _ = env.step(np.int64(0 if row[0] < 0 else 1 + 3 * row[0] + action[0]))
        n += 1
    return n


def main() -> None:
    spec, network = SizingSpec(servers=24, jobs=30, arrivals_per_slot_max=2), load_once("").network
    assert isinstance(network, ScoringNetwork)
    traces = draw_traces(spec, range(4))
    play(traces[:1], network)
    n = count_inferences(spec, range(4), network)
    counted = one_by_one(spec, network, 0)
    for name, inferences, seconds in (
        ("one by one (Gymnasium)", counted, cpu_s(lambda: one_by_one(spec, network, 0))),
        ("episodes, NumPy", n, cpu_s(lambda: play(traces, Plain(network)))),
        ("compiled episodes", n, cpu_s(lambda: play(traces, network))),
    ):
        print(f"{name:26} {inferences / seconds:10,.0f} inferences/s of CPU")
    jobs = [a_job(f"j{k:02}", elastic=(1, 16), servers=(1, 16), seconds=1000.0 + 100 * k) for k in range(40)]
    policy = registry.create("dl2")
    policy.decide(a_view(jobs, "v100=96x2"))
    views = [a_view(jobs, "v100=96x2") for _ in range(10)]
    seconds = cpu_s(lambda: [policy.decide(view) for view in views])
    print(f"decision at 40 jobs, 96 GPUs {seconds / 10 * 1e3:8.1f} ms of CPU")


if __name__ == "__main__":
    main()
