"""Compares the offline optimum of OASiS with enumeration on random small instances.

    python bench/check_oasis_optimum.py [--instances 2000] [--steps 200000]

Seeds are taken in order: 5 slots, 2 + 2 servers. Even seeds: 3 to 5 jobs, half of them with servers of both roles. Odd
seeds: 5 jobs with three resources and up to 8 workers, on which HiGHS's presolve lost schedules. An instance that
enumeration cannot finish within --steps steps is left out and counted. Every other one must be called `optimal`, have
the total that enumeration finds, and pass the independent verifier. Exits 1 otherwise.
"""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

from support.oracles.admission import check_admission
from support.oracles.admission_enumeration import TooLarge, enumerated, mixed_admission, small_admission
from trainmaster.policies.oasis.instance.solve import solve_instance

FIRST_SEED = 10_000
TOLERANCE = 1e-6


def faults(raw: dict[str, Any], best: float) -> list[str]:
    """What is wrong with the optimum of this instance, whose best total is `best`."""
    result = solve_instance(raw, "optimal", {}, "check")
    found = list(check_admission(raw, result))
    if result["status"] != "optimal":
        found.append(f"status {result['status']}")
    if not math.isclose(result["total_utility"], best, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
        found.append(f"total {result['total_utility']:.6f}, enumeration {best:.6f}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=200_000)
    arguments = parser.parse_args()
    compared = wrong = too_large = 0
    by_kind = [0, 0]
    seed = FIRST_SEED
    while compared < arguments.instances:
        half = seed // 2
        raw = mixed_admission(half) if seed % 2 else small_admission(half, 3 + half // 4 % 3)
        try:
            best = enumerated(raw, arguments.steps)
        except TooLarge:
            too_large += 1
        else:
            compared += 1
            by_kind[seed % 2] += 1
            if found := faults(raw, best):
                wrong += 1
                print(f"seed {seed}: {'; '.join(found)}", flush=True)
            if compared % 200 == 0:
                print(f"{compared} compared, {wrong} wrong, {too_large} left out", flush=True)
        seed += 1
    kinds = f"{by_kind[0]} small, {by_kind[1]} with three resources"
    print(f"{compared} instances compared ({kinds}): {wrong} wrong; {too_large} left out as too large")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
