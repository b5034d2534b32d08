"""Why the paper's constants lose: what prices do to admission in the paper-like configuration of `study_oasis.py`.

python bench/study_oasis_constants.py [--seeds 20]
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import numpy as np

from study_oasis import BASE, FIRST_SEED
from support.oracles.admission import utility_at
from support.oracles.admission_instances import paper_like_instance
from trainmaster.policies.oasis.instance.solve import solve_instance

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {"constants": "paper"},
    "paper, spread_max=10": {"constants": "paper", "spread_max": 10.0},
}


def outcome(seed: int, options: dict[str, Any]) -> dict[str, float]:
    """Of one instance: utility, ln(U/L), who was refused for what, and what of their best worth admitted jobs kept."""
    instance = paper_like_instance(BASE, seed)
    result = solve_instance(instance, "oasis", options)
    refused: Counter[str] = Counter()
    kept, shares = [], []
    for job in instance["jobs"]:
        got = result["jobs"][job["id"]]
        if not got["admitted"]:
            refused[got["rejection"]["reason"]] += 1
            continue
        worth = utility_at(job["utility"], got["completion"] - job["arrival"])
        kept.append(worth / utility_at(job["utility"], 0))
        shares.append(got["cost"] / worth if worth > 0 else 0.0)
    return {
        "utility": result["total_utility"], "ln(U/L)": result["bound_alpha"], "admitted": len(kept),
        "refused by price": refused["price"], "for want of capacity": refused["capacity"],
        "price / worth (median)": float(np.median(shares)), "worth kept": float(np.mean(kept)),
        "worth under 1 % at the end": sum(part < 0.01 for part in kept),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = parser.parse_args().seeds
    rows: dict[str, dict[str, float]] = {}
    for name, options in VARIANTS.items():
        outcomes = [outcome(FIRST_SEED + seed, options) for seed in range(seeds)]
        rows[name] = {key: float(np.mean([found[key] for found in outcomes])) for key in outcomes[0]}
    keys = list(next(iter(rows.values())))
    print("| |", " | ".join(rows), "|\n|---|", "---|" * len(rows), sep="")
    for key in keys:
        print(f"| {key} |", " | ".join(f"{row[key]:.3g}" for row in rows.values()), "|")


if __name__ == "__main__":
    main()
