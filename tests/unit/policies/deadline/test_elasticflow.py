"""ElasticFlow on cases small enough to decide by hand."""

from dataclasses import replace

from trainmaster.model.job import DeadlineKind
from trainmaster.policies.registry import create
from trainmaster.testing.builders import Held, a_job, a_view


def test_a_late_job_that_is_still_starting_stays_where_it_is() -> None:
    # Starting costs nothing in the plan, so neither does what is left of it: else both types look better in turns.
    late = a_job("late", seconds=5, speeds={"fast": 1.0, "slow": 0.9})
    late = replace(late, deadline_ms=1_000, deadline_kind=DeadlineKind.HARD)
    view = a_view([late], "fast=1,slow=1", running={"late": Held(since_s=120.0, accelerator=0)}, now_s=100.0)
    view.jobs.columns.ints["admitted"][view.jobs.job_indices] = 1
    assert not create("elasticflow").decide(view).changes
