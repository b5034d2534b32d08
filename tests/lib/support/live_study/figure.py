"""Sizes over time, a row per job: what ran above, what was simulated below."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

from support.live_study.live import LiveRun
from trainmaster.sim.run import RunResult

COLOURS = ("#e09f3e", "#2a6f97", "#9e2a2b", "#777777")
Spans = dict[str, list[tuple[float, float, float, str]]]
"""By job: (from, to, workers, GPU type)."""


def live_spans(run: LiveRun, look_s: float) -> Spans:
    spans: Spans = defaultdict(list)
    for sample in run.samples:
        rows = spans[sample.job]
        end_s = sample.at_s + look_s
        if rows and rows[-1][2:] == (sample.workers, sample.gpu_type) and sample.at_s - rows[-1][1] < 2 * look_s:
            rows[-1] = (rows[-1][0], end_s, *rows[-1][2:])
        else:
            rows.append((sample.at_s, end_s, sample.workers, sample.gpu_type))
    return spans


def twin_spans(run: LiveRun, twin: RunResult, begun_s: float) -> Spans:
    assert twin.history is not None
    name_of = {job_id: name for name, job_id in run.ids.items()}
    spans: Spans = defaultdict(list)
    seen: set[tuple[str, float]] = set()
    for row in twin.history.table(twin.end_ms).iter_rows(named=True):
        key = (row["job_id"], row["start_s"])
        if key not in seen:
            seen.add(key)
            start_s, end_s = row["start_s"] - begun_s, row["end_s"] - begun_s
            spans[name_of[row["job_id"]]].append((start_s, end_s, row["job_gpus"], row["accelerator"]))
    return spans


def draw(live: Spans, twin: Spans, jobs: list[str], title: str, path: Path) -> None:
    figure, axes = plt.subplots(figsize=(10, 0.42 * len(jobs) + 1.4))
    types = sorted({span[3] for spans in (live, twin) for rows in spans.values() for span in rows})
    for k, job in enumerate(jobs):
        for spans, base, sign in ((live, k + 0.02, 1), (twin, k - 0.02, -1)):
            for start_s, end_s, size, gpu_type in spans.get(job, []):
                axes.bar(
                    start_s, sign * size / 10.0, end_s - start_s, base, align="edge", linewidth=0,
                    color=COLOURS[types.index(gpu_type) % len(COLOURS)], alpha=1.0 if sign > 0 else 0.45,
                )  # fmt: skip
        axes.axhline(k, color="#bbbbbb", linewidth=0.5)
    axes.set_yticks(range(len(jobs)), jobs, fontsize=8)
    axes.set_ylim(len(jobs) - 0.4, -0.6)
    axes.invert_yaxis()
    axes.set_xlabel("seconds since the first submission")
    axes.set_title(title, fontsize=10, loc="left")
    handles = [Rectangle((0, 0), 1, 1, color=COLOURS[k % len(COLOURS)]) for k in range(len(types))]
    axes.legend(
        handles, types, title="above: live, below: simulated", fontsize=8, title_fontsize=8, loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
    )  # fmt: skip
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
