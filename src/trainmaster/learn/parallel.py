"""Episodes played by several processes; the result does not depend on how many."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from trainmaster.core.arrays import Floats
from trainmaster.learn.dl2.options import TrainOptions
from trainmaster.learn.dl2.rollout import Samples, Scorer, Slots, joined
from trainmaster.learn.dl2.trainer import Collector, collect_here, collect_part, parts
from trainmaster.learn.sizing.trace import SizingTrace


@contextmanager
def collectors(processes: int) -> Iterator[Collector]:
    """A collector over so many processes; they end with the block."""
    if processes <= 1:
        yield collect_here
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:

        def collect(
            traces: Sequence[SizingTrace], scorer: Scorer, seed: Sequence[int], options: TrainOptions
        ) -> tuple[Samples, Slots, Floats]:
            jobs = [(few, scorer, own_seed, options) for few, own_seed in parts(traces, seed)]
            return joined(pool.starmap(collect_part, jobs))

        yield collect
