"""Run the study, print a table, draw a picture of each policy's first run."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean

from support.live_study import figure
from support.live_study.live import LOOK_S, LiveRun, finished, miscounted, run
from support.live_study.twin import Agreement, compared, measured_speeds, twin_of
from support.live_study.workload import StudyJob, draw
from trainmaster.estimate.prices import PRICE_PER_GPU_HOUR
from trainmaster.model.cluster import Cluster, parse_cluster

Seen = tuple[LiveRun, Cluster, list[str]]
Way = Callable[[str, float | None, Sequence[StudyJob]], Seen]

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


KUBE_TYPES = {"Tesla-V100-SXM2-16GB": 1.0, "Tesla-P100-PCIE-16GB": 1.6}
KUBE_FAILS = ("node2", 60.0)


def on_this_machine(policy: str, round_s: float | None, jobs: Sequence[StudyJob]) -> Seen:
    with tempfile.TemporaryDirectory(prefix="live-study-") as folder:
        found = run(Path(folder), jobs, NODES, policy, round_s, FAILS)
        return found, parse_cluster(NODES, PRICE_PER_GPU_HOUR), miscounted(Path(folder), finished(jobs, found))


def on_nodes(policy: str, round_s: float | None, jobs: Sequence[StudyJob]) -> Seen:
    from support.kubernetes.cluster import own_cluster
    from support.live_study.on_kubernetes import run_on_kubernetes

    with own_cluster(3, "--gpus", "4", "--gpu-types", ",".join(KUBE_TYPES)) as (cluster, folder):
        found, nodes = run_on_kubernetes(cluster, folder, jobs, policy, round_s, KUBE_TYPES, KUBE_FAILS)
        return found, nodes, miscounted(folder / "records", finished(jobs, found))


def study(name: str, jobs: Sequence[StudyJob], way: Way, path: Path) -> Agreement:
    """One run and its twin, and a picture of both."""
    policy, round_s = POLICIES[name]
    found, cluster, wrong = way(policy, round_s, jobs)
    twin = twin_of(jobs, found, policy, cluster, round_s, measured_speeds(jobs, [found]))
    agreement = compared(found, twin, wrong)
    path.parent.mkdir(parents=True, exist_ok=True)
    live, simulated = figure.live_spans(found, LOOK_S), figure.twin_spans(found, twin, round_s or 10.0)
    title = f"{name}: mean completion time {agreement.live_jct_s:.1f} s live, {agreement.twin_jct_s:.1f} s simulated"
    figure.draw(live, simulated, [job.name for job in jobs], title, path)
    return agreement


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--minutes", type=float, default=3.0, help="time in which the jobs arrive")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out/live-study"))
    parser.add_argument("--on", choices=("machine", "kubernetes"), default="machine")
    options = parser.parse_args()
    way = on_this_machine if options.on == "machine" else on_nodes
    rows = []
    print("policy    seed  live s  simulated s  ratio  resizes  preemptions  otherwise  miscounted", flush=True)
    for name in options.policies.split(","):
        found = []
        for seed in range(options.seed, options.seed + options.repeats):
            jobs = draw(options.jobs, seed, options.minutes, (25.0, 75.0))
            one = study(name, jobs, way, options.out / f"{options.on}-{name}-{seed}.svg")
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
    (options.out / f"{options.on}.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
