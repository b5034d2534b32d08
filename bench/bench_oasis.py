"""CPU time of one OASiS admission decision: 1,000 arrivals at T = 300, 50 + 50 servers, N up to 100; and
its growth.

    python bench/bench_oasis.py [--arrivals 1000] [--json FILE]

Exits 1 when the median exceeds 30 ms or the 99th percentile 150 ms.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from support.oracles.admission_instances import PaperLike, paper_like_instance
from trainmaster.policies.oasis.admission import OnlineAdmission
from trainmaster.policies.oasis.instance.parsing import parse_instance
from trainmaster.policies.oasis.prices import PriceSettings

MEDIAN_MS_MAX = 30.0
P99_MS_MAX = 150.0
BASE = PaperLike(jobs=200, horizon=300, worker_servers=50, ps_servers=50, longest_run_slots=300)


def decision_times_ms(config: PaperLike, arrivals: int, *, both: bool = False) -> np.ndarray:
    """CPU milliseconds of each decision, over as many instances as `arrivals` needs; `both`: all servers
    host workers and PS, too many of them for the exact joint placement, so that the greedy one is measured.
    """
    times: list[float] = []
    seed = 0
    while len(times) < arrivals:
        raw = paper_like_instance(config, seed)
        if both:
            raw["servers"] = [{**server, "role": "both"} for server in raw["servers"]]
        problem = parse_instance(raw, "bench")
        online = OnlineAdmission(problem.cluster, problem.horizon, PriceSettings())
        for job in problem.arrivals():
            started_s = time.process_time()
            online.offer(job)
            times.append((time.process_time() - started_s) * 1e3)
        seed += 1
    return np.array(times[:arrivals])


def summary(times_ms: np.ndarray) -> dict[str, float]:
    return {
        "decisions": len(times_ms),
        "median_ms": round(float(np.median(times_ms)), 3),
        "p99_ms": round(float(np.percentile(times_ms, 99)), 3),
        "max_ms": round(float(times_ms.max()), 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arrivals", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    decision_times_ms(PaperLike(jobs=5, horizon=20), 5)  # compiles or loads the kernels
    decision_times_ms(PaperLike(jobs=5, horizon=20), 5, both=True)
    cases = {"T=300, 50+50, runs to 300 slots": (BASE, arguments.arrivals)}
    few = max(50, arguments.arrivals // 10)
    for horizon in (100, 200, 600):
        cases[f"T={horizon}"] = (replace(BASE, horizon=horizon, longest_run_slots=min(300, horizon)), few)
    for servers in (10, 100, 200):
        cases[f"{servers}+{servers} servers"] = (
            replace(BASE, worker_servers=servers, ps_servers=servers),
            few,
        )
    for longest in (15, 60):
        cases[f"runs to {longest} slots"] = (replace(BASE, longest_run_slots=longest), few)
    results: dict[str, dict[str, float]] = {}
    print(f"{'case':34} {'decisions':>9} {'median ms':>10} {'p99 ms':>9} {'max ms':>9}")
    for name, (config, arrivals) in cases.items():
        row = results[name] = summary(decision_times_ms(config, arrivals))
        print(f"{name:34} {row['decisions']:9} {row['median_ms']:10.2f} {row['p99_ms']:9.2f} {row['max_ms']:9.2f}")
    name, config = "50+50 servers of both roles, T=100", replace(BASE, horizon=100, longest_run_slots=100)
    row = results[name] = summary(decision_times_ms(config, max(20, arguments.arrivals // 20), both=True))
    print(f"{name:34} {row['decisions']:9} {row['median_ms']:10.2f} {row['p99_ms']:9.2f} {row['max_ms']:9.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    base = next(iter(results.values()))
    if base["median_ms"] > MEDIAN_MS_MAX or base["p99_ms"] > P99_MS_MAX:
        print(f"too slow: limits are median {MEDIAN_MS_MAX:g} ms, p99 {P99_MS_MAX:g} ms")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
