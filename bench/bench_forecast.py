"""CPU time of forecasts: a queue of 1,000 jobs on 512 GPUs, a third of them with an unknown amount of work.

    python bench/bench_forecast.py [--policies fifo,srtf,...] [--jobs 1000] [--whole]

For each policy: one `forecast` as the service asks for it (a few futures, each rolled to the horizon), and with
`--whole` one future rolled to its end. The digest is that of all results: trees that print the same one agree on every
job. The script uses the public functions of `forecast` alone, so it runs on older trees too.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Callable

import numpy as np

from trainmaster.engine.engine import Engine
from trainmaster.engine.persistence import Recorder
from trainmaster.engine.ports import StoredState
from trainmaster.engine.records import Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.forecast.forecast import forecast
from trainmaster.forecast.rollout import roll
from trainmaster.forecast.situation import Belief, Costs, Situation
from trainmaster.model import event as ev
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.command import Launch
from trainmaster.model.job import JobId, JobSpec
from trainmaster.policies.registry import create

CLUSTER = "v100=256x8,k80=256x8"
COSTS = Costs(launch_ms=4_000, restart_ms=6_000, resize_ms=2_000, stop_ms=1_500, exit_ms=300)
NOW_MS = 60_000
REPEATS = 3


def specs(count: int, gap_ms: int = 1, all_known: bool = False) -> list[JobSpec]:
    """A third of the jobs does not say how much work it has, unless `all_known`."""
    rng = np.random.Generator(np.random.PCG64(1))
    found = []
    for k in range(count):
        size, work = int(rng.choice([1, 1, 1, 2, 4, 8])), float(rng.lognormal(8, 1))
        speeds = {"v100": 1.0, "k80": float(rng.uniform(0.2, 0.6))}
        found.append(JobSpec(JobId(f"j{k:04}"), k * gap_ms, workers_min=size, workers_max=size, workers_ref=size,
                             work_total=work if all_known or k % 3 else None, steps_per_s=speeds))  # fmt: skip
    return found


def situation_of(policy: str, count: int) -> Situation:
    """A minute after all were submitted: what fits runs, the rest waits."""
    cluster = parse_cluster(CLUSTER)
    engine = Engine(cluster, create(policy), DeclaredSpeeds(), Settings(round_ms=360_000))
    jobs = specs(count)
    commands = engine.step(count, *(ev.JobSubmitted(spec) for spec in jobs))
    started = (ev.Started(c.job_id, c.generation, 0.0, NOW_MS) for c in commands if isinstance(c, Launch))
    engine.step(NOW_MS, *started)
    commit = Recorder.of_new(engine).changes(())
    stored_state = StoredState(
        {key: record for key, record in commit.jobs.items() if record is not None}, {}, commit.meta
    )
    beliefs: dict[str, Belief] = {spec.id: Belief(0.1, None if spec.work_total else (4_000.0, 0.8)) for spec in jobs}
    return Situation(NOW_MS, policy, cluster, stored_state, engine.settings, beliefs, COSTS)


def least_cpu_s(act: Callable[[], object]) -> tuple[float, object]:
    """The shortest of some runs after one that does not count, and its result."""
    result = act()
    took = []
    for _ in range(REPEATS):
        begun = time.process_time()
        result = act()
        took.append(time.process_time() - begun)
    return min(took), result


def digest(result: object) -> str:
    return hashlib.sha256(repr(result).encode()).hexdigest()[:12]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="fifo,srtf,las,gavel-max-min")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--whole", action="store_true")
    chosen = parser.parse_args()
    for policy in chosen.policies.split(","):
        situation = situation_of(policy, chosen.jobs)
        cpu_s, outlooks = least_cpu_s(lambda s=situation: forecast(s))
        print(f"{policy}: forecast of {chosen.jobs} jobs {cpu_s:.3f} s CPU, digest {digest(outlooks)}", flush=True)
        if chosen.whole:
            cpu_s, future = least_cpu_s(lambda s=situation: roll(s, 1))
            ends = [(end.spec.id, end.ended_ms) for end in future.ended]  # type: ignore[attr-defined]
            n = future.decisions  # type: ignore[attr-defined]
            print(f"{policy}: one whole future {cpu_s:.3f} s CPU, {n} decisions, digest {digest(ends)}", flush=True)


if __name__ == "__main__":
    main()
