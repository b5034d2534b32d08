"""The command line of the fault simulation: many seeds with a progress bar, or one seed told in full."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Protocol

from trainmaster.cli.shared.output import progress_bar
from trainmaster.dst.engine.faulty_world import Outcome
from trainmaster.dst.engine.story import Story

SHOWN = 3
"""Violations whose story is told in full; of the others the seed."""


class Told(Protocol):
    """A world that has been run."""

    story: Story

    def about(self) -> str:
        """Its seed, policy and what it was drawn with."""
        ...


def main(prog: str, run: Callable[[int], Outcome], world: Callable[[int], tuple[Told, Outcome]]) -> None:
    """`run` runs one seed, in any process; `world` gives the world that was run, too."""
    parser = argparse.ArgumentParser(prog=f"python -m {prog}", description=__doc__)
    parser.add_argument("--seeds", type=_count, default=200, help="how many seeds to run (default 200)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them (default 0)")
    parser.add_argument("--processes", type=_count, default=1, help="how many at a time (default 1)")
    parser.add_argument("--replay", type=int, metavar="SEED", help="tell one seed event by event instead")
    chosen = parser.parse_args()
    if chosen.replay is not None:
        sys.exit(replay(*world(chosen.replay)))
    sys.exit(sweep(range(chosen.first_seed, chosen.first_seed + chosen.seeds), chosen.processes, run, prog))


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive whole number")
    return number


def replay(world: Told, outcome: Outcome) -> int:
    """Print the whole story of a seed; the same bytes each time."""
    print("\n".join([f"seed {outcome.seed}: policy {outcome.policy}, {world.about()}", *world.story.lines()]))
    print(summary(outcome))
    return 1 if outcome.violation else 0


def summary(outcome: Outcome) -> str:
    ends = ", ".join(f"{count} {name}" for name, count in sorted(outcome.ends.items()))
    verdict = f"VIOLATION: {outcome.violation}" if outcome.violation else "no violation"
    return f"seed {outcome.seed}: {outcome.steps} steps, {outcome.restarts} restarts, {ends}; {verdict}"


def outcomes(seeds: range, processes: int, run: Callable[[int], Outcome]) -> Iterator[Outcome]:
    if processes == 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(run, seeds, chunksize=8)


def sweep(seeds: range, processes: int, run: Callable[[int], Outcome], prog: str) -> int:
    """Run them all; 1 when any is in violation."""
    bad: list[Outcome] = []
    steps, restarts, ends = 0, 0, Counter[str]()
    begun = time.perf_counter()
    with progress_bar("fault seeds", len(seeds)) as advance_to:
        for done, outcome in enumerate(outcomes(seeds, processes, run), 1):
            advance_to(done)
            steps, restarts = steps + outcome.steps, restarts + outcome.restarts
            ends.update(outcome.ends)
            if outcome.violation:
                bad.append(outcome)
    for outcome in bad[:SHOWN]:
        print(f"\n== seed {outcome.seed} ({outcome.policy}): {outcome.violation}")
        print("\n".join(outcome.story))
    told = ", ".join(f"{count} {name}" for name, count in sorted(ends.items()))
    wall_s = time.perf_counter() - begun
    print(f"{len(seeds)} seeds in {wall_s:.0f} s: {steps} steps, {restarts} engine restarts")
    print(f"jobs: {told}; {len(bad)} violations")
    if bad:
        print("seeds in violation: " + " ".join(str(outcome.seed) for outcome in bad))
        print(f"replay one: python -m {prog} --replay {bad[0].seed}")
    return 1 if bad else 0
