"""How far the built-in estimates are from measured speeds: Gavel's tables and AdaptDL's step times.

Run: `python bench/check_catalogue.py [DATA]` (DATA holds `gavel/` and `traces/raw/adaptdl_profiles/`;
default `$TRAINMASTER_DATA`, then `../shared`). Prints, per group, the quantiles of |log ratio| as factors.
"""

from __future__ import annotations

import csv
import json
import math
import os
import sys
from pathlib import Path

import numpy as np

from trainmaster.estimate.accelerators import ACCELERATORS
from trainmaster.estimate.catalogue import TableCatalogue, load_catalogue, split_batch_size
from trainmaster.estimate.model_facts import MODELS
from trainmaster.estimate.roofline import BuiltinCatalogue, step_time

# AdaptDL measured on AWS g4dn.12xlarge (four T4 and 50 Gb/s per node).
_ADAPTDL = {
    "bert": "BERT-base", "cifar10": "ResNet-18", "deepspeech2": "DeepSpeech2", "imagenet": "ResNet-50",
    "ncf": "NCF", "yolov3": "YOLOv3",
}  # fmt: skip


def gavel_ratios(path: Path) -> list[tuple[str, str, float]]:
    """(family, group, estimate / measurement) of every entry for a job that runs alone."""
    table, built = load_catalogue(path), BuiltinCatalogue()
    assert isinstance(table, TableCatalogue)
    ratios = []
    for entry in table.entries:
        estimate = built.steps_per_s(entry.model, entry.gpus, entry.accelerator, spread=entry.spread)
        if estimate and entry.steps_per_s and not (entry.spread and entry.gpus == 1):
            base = split_batch_size(entry.model)[0]
            where = "1 GPU" if entry.gpus == 1 else "spread" if entry.spread else "packed"
            ratios.append((base, f"gavel {entry.accelerator} {where}", estimate / entry.steps_per_s))
    return ratios


def adaptdl_ratios(folder: Path) -> list[tuple[str, str, float]]:
    ratios = []
    for name, model in _ADAPTDL.items():
        with open(folder / name / "placements.csv", newline="") as stream:
            for row in csv.DictReader(stream):
                workers = [int(digit) for digit in row["placement"]]
                gpus, spread = sum(workers), len(workers) > 1
                estimate = step_time(
                    MODELS[model], ACCELERATORS["t4"], gpus, int(row["local_bsz"]), spread=spread
                ).total_s
                where = "1 GPU" if gpus == 1 else "spread" if spread else "packed"
                ratios.append((model, f"adaptdl t4 {where}", float(row["step_time"]) / estimate))
    return ratios


def report(title: str, rows: list[tuple[str, float]]) -> list[str]:
    lines = [f"{title:34s} {'n':>6s} {'bias':>7s} {'median':>7s} {'p90':>7s} {'within 2x':>10s}"]
    for group in sorted({group for group, _ in rows}):
        logs = np.array([math.log(ratio) for label, ratio in rows if label == group])
        size = np.abs(logs)
        lines.append(
            f"{group:34s} {len(logs):6d} {math.exp(np.median(logs)):7.2f} {math.exp(np.median(size)):7.2f} "
            f"{math.exp(np.quantile(size, 0.9)):7.2f} {np.mean(size <= math.log(2)):10.0%}"
        )
    return lines


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TRAINMASTER_DATA", "../shared"))
    found = gavel_ratios(root / "gavel/throughputs/simulation_throughputs.json")
    found += adaptdl_ratios(root / "traces/raw/adaptdl_profiles")
    print("Ratios are estimate / measurement of the speed; `median` and `p90` are factors, either way.")
    for line in report("by measurement", [(group, ratio) for _, group, ratio in found]):
        print(line)
    for line in report("by model", [(model, ratio) for model, _, ratio in found]):
        print(line)
    for line in report("all", [("all", ratio) for *_, ratio in found]):
        print(line)
    if "--v100" in sys.argv:
        print(json.dumps([r for r in found if r[1] == "gavel v100 1 GPU"], indent=0))


if __name__ == "__main__":
    main()
