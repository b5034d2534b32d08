"""Faults on a real cluster, one after the other while jobs run; then the trainers' own records are read.

    python -m support.kubernetes.faults [--kind leader-killed evicted=40 ...] [--times 20] [--seed 0] [--out FILE]

Checked: no accepted job is lost, no job ever has two lives at once, every job ends as it should, no pod is left over.
Prints the seconds until work went on again, for each kind: median, largest, and how many. Exit code 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from support.kubernetes.cluster import kubernetes_cluster
from support.kubernetes.fault_types import AT_ONCE, BUSY, EXPECTED_TO_FAIL, KINDS
from support.kubernetes.world import ENDED, World, world
from support.trainer_records import overlaps, read_lives

JOBS_AT_ONCE = 4
JOB_S = (12.0, 30.0)


def keep_busy(made: World, rng: random.Random, jobs: int) -> None:
    """So many jobs run or wait at any time; gangs of one to three."""
    states = {name: status.get("state") for name, status in made.statuses().items()}
    going = sum(states.get(name) not in ENDED for name in made.names)
    for _ in range(jobs - going):
        made.submit(rng.uniform(*JOB_S), rng.choice([1, 1, 1, 2, 3]))


def run_kind(made: World, kind: str, times: int, rng: random.Random) -> tuple[list[float], list[str]]:
    took_s: list[float] = []
    wrong: list[str] = []
    at_once = AT_ONCE.get(kind, 1)

    def one(number: int) -> None:
        try:
            seconds = KINDS[kind](made, random.Random(f"{rng_seed}/{number}"))
            took_s.append(round(seconds, 2))
            print(f"  {kind} {number + 1}/{times}: {seconds:.1f} s", flush=True)
        except Exception as error:  # one that fails must not hide the others
            wrong.append(f"{kind} {number + 1}: {type(error).__name__}: {error}")
            print(f"  {wrong[-1]}", flush=True)
            if not isinstance(error, AssertionError):
                traceback.print_exc()

    rng_seed = rng.random()
    for first in range(0, times, at_once):
        keep_busy(made, rng, BUSY.get(kind, JOBS_AT_ONCE + at_once - 1))
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(one, range(first, min(first + at_once, times))))
    wrong += check(made, kind)
    return took_s, wrong


def check(made: World, kind: str) -> list[str]:
    """Faults are over: everything must come to its end, and nothing be left."""
    wrong: list[str] = []
    try:
        made.until("the end of all jobs", lambda: _all_ended(made), 240, every_s=0.5)
    except AssertionError as error:
        wrong.append(str(error))
    statuses = made.statuses()
    lives = read_lives(made.records)
    for name in made.names:
        state = statuses.get(name, {}).get("state", "lost")
        finished = any(life.job == name and life.last_word == "finished" for life in lives)
        if state == "lost":
            wrong.append(f"{name} was accepted and is not there any more")
        elif state != "finished" and not (kind in EXPECTED_TO_FAIL and state == "failed"):
            wrong.append(f"{name} ended {state}: {statuses[name].get('message')}")
        elif state == "finished" and not finished:
            wrong.append(f"{name} is called finished, but no trainer of it says so")
    wrong += overlaps(lives)
    made.note_kubelets()
    made.delete_jobs()
    try:
        made.until("no pod left over", lambda: not made.pods(), 90, every_s=0.5)
    except AssertionError:
        wrong.append(f"pods left over: {[pod['metadata']['name'] for pod in made.pods()]}")
    return wrong


def _all_ended(made: World) -> bool:
    statuses = made.statuses()
    return all(statuses.get(name, {}).get("state") in ENDED for name in made.names)


def summary(results: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| fault | times | median s | largest s | placed after s | taken up by the kubelet | checks that failed |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, result in results.items():
        took_s = result["seconds"]
        median, largest = (statistics.median(took_s), max(took_s)) if took_s else (float("nan"), float("nan"))
        placed, taken_up = (_middle_and_most(result[name]) for name in ("placed_s", "taken_up_s"))
        figures = f"{len(took_s)} | {median:.1f} | {largest:.1f} | {placed} | {taken_up}"
        lines.append(f"| {kind} | {figures} | {len(result['wrong'])} |")
    return "\n".join(lines)


def _middle_and_most(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f}, {max(seconds):.1f}" if seconds else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", nargs="+", default=list(KINDS), help=f"KIND or KIND=TIMES; known: {' '.join(KINDS)}")
    parser.add_argument("--times", type=int, default=20, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--lease", type=float, default=10.0, help="seconds; the default of the service is 30")
    parser.add_argument("--out", type=Path, help="results as JSON, written after every kind")
    parser.add_argument("--keep", type=Path, help="folder for logs and records (default: a temporary one)")
    options = parser.parse_args()
    wanted = [(kind, int(times or options.times)) for kind, _, times in (word.partition("=") for word in options.kind)]
    unknown = [kind for kind, _ in wanted if kind not in KINDS]
    if unknown:
        parser.error(f"unknown kinds of fault: {', '.join(unknown)}; expected some of {', '.join(KINDS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the cluster is taken down
    folder = options.keep or Path(tempfile.mkdtemp(prefix="tm-faults-"))
    results: dict[str, dict[str, Any]] = {}
    with kubernetes_cluster(fake=0, nodes=options.nodes) as cluster, world(
        cluster, folder, lease_s=options.lease
    ) as made:  # fmt: skip
        for kind, times in wanted:
            began_s = time.monotonic()
            print(kind, flush=True)
            made.probes.clear()
            took_s, wrong = run_kind(made, kind, times, random.Random(f"{options.seed}/{kind}"))
            begun = [(probe.fault_s, made.lives(probe.job)) for probe in made.probes]
            if len(begun) == len(took_s):
                took_s = [round(lives[0].first_s - fault_s, 2) for fault_s, lives in begun if lives]
            results[kind] = {
                "seconds": took_s, "placed_s": [round(probe.placed_s, 2) for probe in made.probes], "wrong": wrong,
                "taken_up_s": [round(probe.taken_up_s, 1) for probe in made.probes if probe.taken_up_s is not None],
                "seed": options.seed, "lease_s": options.lease,
                "wall_s": round(time.monotonic() - began_s, 1),
            }  # fmt: skip
            for text in wrong:
                print(f"  WRONG: {text}", flush=True)
            if options.out:
                options.out.write_text(json.dumps(results, indent=1))
    print(summary(results))
    return 1 if any(result["wrong"] for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
