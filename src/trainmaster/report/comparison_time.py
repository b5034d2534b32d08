"""Figures over time: queue and use of the cluster, and who held which GPU (Gantt)."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import polars as pl
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from trainmaster.report.comparison_figures import SIZES, Picture, rendered
from trainmaster.report.style import figure, house_style, plain

LANES_MAX = 128
# Light to dark with size, so that the classes can be told apart in grey.
_SHADES = ("#cfe0ef", "#f0c060", "#6ba3cf", "#a0501a", "#1f2d3d")


def over_time(timeline: pl.DataFrame, policies: Sequence[str], gpus: int) -> Picture:
    """Small multiples: a row per policy, jobs waiting on the left, share of GPUs in use on the right."""
    unit, per_unit_s = _clock(float(timeline["time_s"].max() or 0.0))  # type: ignore[arg-type]
    most = max(float(timeline["waiting"].max() or 0.0), 1.0)  # type: ignore[arg-type]
    with house_style():
        made, grid = plt.subplots(
            len(policies), 2, figsize=(8.4, 0.9 + 0.95 * len(policies)), sharex=True, squeeze=False
        )
        try:
            for row, policy in enumerate(policies):
                own = timeline.filter(pl.col("policy") == policy)
                times = own["time_s"].to_numpy() / per_unit_s
                left, right = grid[row]
                left.fill_between(
                    times,
                    own["waiting"].to_numpy(),
                    step="post",
                    color="#7fb3d9",
                    edgecolor="#1f4e79",
                    linewidth=0.7,
                )
                right.fill_between(
                    times,
                    own["gpus_in_use"].to_numpy() / gpus,
                    step="post",
                    color="#c9c9c9",
                    edgecolor="#333333",
                    linewidth=0.7,
                )
                left.set_ylim(0, most * 1.05)
                right.set_ylim(0, 1.05)
                right.set_yticks([0, 0.5, 1])
                right.yaxis.set_major_formatter(PercentFormatter(1.0))
                left.set_title(policy, fontsize=9, pad=2)
                for axes in (left, right):
                    axes.tick_params(labelsize=8)
            grid[-1][0].set_xlabel(f"{unit} since the first submission")
            grid[-1][1].set_xlabel(f"{unit} since the first submission")
            grid[0][0].set_title(f"jobs waiting\n{policies[0]}", fontsize=9, pad=2)
            grid[0][1].set_title("GPUs in use", fontsize=9, pad=2)
            caption = "Seed 0 (the trace itself), means over equal intervals, the same scales for every policy."
            return Picture("time", "Queue and use over time", caption, rendered(made, "png"), "png")
        finally:
            plt.close(made)


def _clock(span_s: float) -> tuple[str, float]:
    return ("days", 86_400.0) if span_s > 4 * 86_400 else ("hours", 3600.0) if span_s > 4 * 3600 else ("minutes", 60.0)


def gantt(allocations: pl.DataFrame, policy: str, name: str) -> Picture | None:
    """A lane per GPU, nodes one above the other; a bar is a job that holds it, shaded by the job's size."""
    own = allocations.filter(pl.col("policy") == policy)
    if own.is_empty():
        return None
    sizes = own.explode("devices").group_by("node", "node_id").agg(pl.col("devices").max() + 1).sort("node")
    first_lane, lanes, kept = {}, 0, []
    for node, node_id, devices in sizes.iter_rows():
        if lanes and lanes + devices > LANES_MAX:
            break
        first_lane[node] = lanes
        lanes += devices
        kept.append((node_id, devices))
    shown = own.filter(pl.col("node").is_in(list(first_lane))).explode("devices")
    unit, per_unit_s = _clock(float(shown["end_s"].max() or 0.0))  # type: ignore[arg-type]
    starts = shown["start_s"].to_numpy() / per_unit_s
    ends = shown["end_s"].to_numpy() / per_unit_s
    lane = np.array([first_lane[node] for node in shown["node"].to_list()]) + shown["devices"].to_numpy()
    gpus = shown["job_gpus"].to_numpy()
    height = float(np.clip(0.06 * lanes, 0.9, 6.0)) + 1.0
    with figure(policy, f"{unit} on the trace clock", "", size=(8.4, height)) as (made, axes):
        handles = []
        for (low, high, label), shade in zip(SIZES, _SHADES, strict=True):
            mask = (gpus > low) & (gpus <= high)
            if not mask.any():
                continue
            corners = np.stack(
                [
                    np.stack([starts, ends, ends, starts], axis=1)[mask],
                    np.stack([lane + 0.05, lane + 0.05, lane + 0.95, lane + 0.95], axis=1)[mask],
                ],
                axis=2,
            )
            axes.add_collection(PolyCollection(list(corners), facecolors=shade, edgecolors="white", linewidths=0.15))
            handles.append(Patch(facecolor=shade, edgecolor="#888888", linewidth=0.4, label=label))
        edge = 0
        centres = []
        for _, devices in kept:
            centres.append(edge + devices / 2)
            edge += devices
            axes.axhline(edge, color="#555555", linewidth=0.5)
        every = max(1, int(np.ceil(len(kept) / (height * 4))))
        axes.set_yticks(centres[::every], [plain(node_id) for node_id, _ in kept][::every], fontsize=8)
        axes.set_xlim(float(starts.min()), float(ends.max()))
        axes.set_ylim(lanes, 0)
        axes.grid(visible=False)
        axes.legend(
            handles=handles,
            title="GPUs of\nthe job",
            loc="upper left",
            bbox_to_anchor=(1.01, 1.0),
            borderaxespad=0.0,
        )
        left_out = sizes.height - len(kept)
        caption = "Seed 0. A lane is a GPU; white is idle." + (
            f" {left_out} more nodes are not shown." if left_out else ""
        )
        return Picture(name, f"Who held which GPU: {policy}", caption, rendered(made, "png"), "png")
