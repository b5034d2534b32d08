"""Run the study, print a table, draw a picture of each policy's first run."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import mean

from support.live_study import figure
from support.live_study.live import LOOK_S, finished, miscounted, run
from support.live_study.twin import Agreement, compared, measured_speeds, twin_of
from support.live_study.workload import draw
from trainmaster.estimate.prices import PRICE_PER_GPU_HOUR
from trainmaster.model.cluster import parse_cluster

NODES = "v100:2x4,p100:1x4"
FAILS = ("p100-0", 2, 45.0)
"""Which node fails, and when."""
POLICIES: dict[str, tuple[str, float | None]] = {
    "oasis": ("oasis:slot_s=20", None),
    "gavel": ("gavel-max-min", 20.0),
    "das": ("das", None),
    "deadline": ("deadline", None),
    "dl2": ("dl2", 20.0),
}
"""Policy and length of a round, in seconds: time is scaled down as the jobs are."""


def study(name: str, seed: int, count: int, minutes: float, seconds_alone: tuple[float, float], out: Path) -> Agreement:
    policy, round_s = POLICIES[name]
    jobs = draw(count, seed, minutes, seconds_alone)
    cluster = parse_cluster(NODES, PRICE_PER_GPU_HOUR)
    with tempfile.TemporaryDirectory(prefix="live-study-") as folder:
        found = run(Path(folder), jobs, NODES, policy, round_s, FAILS)
        wrong = miscounted(Path(folder), finished(jobs, found))
    speeds = measured_speeds(jobs, [found])
    twin = twin_of(jobs, found, policy, cluster, round_s, speeds)
    agreement = compared(found, twin, wrong)
    out.mkdir(parents=True, exist_ok=True)
    live, simulated = figure.live_spans(found, LOOK_S), figure.twin_spans(found, twin, round_s or 10.0)
    title = f"{name}: mean completion time {agreement.live_jct_s:.1f} s live, {agreement.twin_jct_s:.1f} s simulated"
    figure.draw(live, simulated, [job.name for job in jobs], title, out / f"{name}-{seed}.svg")
    return agreement


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--minutes", type=float, default=3.0, help="time in which the jobs arrive")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out/live-study"))
    options = parser.parse_args()
    rows = []
    print("policy    seed  live s  simulated s  ratio  resizes  preemptions  otherwise  miscounted", flush=True)
    for name in options.policies.split(","):
        found = []
        for seed in range(options.seed, options.seed + options.repeats):
            one = study(name, seed, options.jobs, options.minutes, (25.0, 75.0), options.out)
            found.append(one)
            rows.append({"policy": name, "seed": seed, "live_jct_s": one.live_jct_s, "twin_jct_s": one.twin_jct_s})
            print(
                f"{name:9} {seed:4}  {one.live_jct_s:6.1f}  {one.twin_jct_s:11.1f}  {one.ratio:5.3f}  {one.resizes:7}"
                f"  {one.preemptions:11}  {len(one.otherwise):9}  {len(one.miscounted):10}", flush=True,
            )  # fmt: skip
            for line in (*one.otherwise, *one.miscounted):
                print(f"    {line}", flush=True)
        ratios = [one.ratio for one in found]
        print(f"{name:9} mean ratio {mean(ratios):.3f} over {len(ratios)}", flush=True)
    (options.out / "agreement.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
