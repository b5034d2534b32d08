"""Jobs of a set of nodes are placed although no set leaves a node out, so that no mask is made."""

import pytest

from trainmaster.engine.engine import Engine, Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.command import Launch
from trainmaster.model.job import Demand, JobId, JobSpec
from trainmaster.policies.registry import create


@pytest.mark.parametrize("n_sets", [1, 40])
def test_a_set_of_all_nodes_needs_no_mask(n_sets: int) -> None:
    engine = Engine(parse_cluster("v100=24x8"), create("fifo"), DeclaredSpeeds(0.0), Settings())
    for k in range(n_sets):
        everywhere = ev.NodeSet(f"set-{k}", frozenset(range(3)))
        gang = JobSpec(
            JobId(f"job-{k}"), workers_min=3, workers_max=3, workers_ref=3, worker=Demand(8000), node_set=f"set-{k}"
        )
        commands = engine.step(2 * k + 1, everywhere, ev.JobSubmitted(gang))
        assert [type(command) for command in commands] == [Launch]
        engine.step(2 * k + 2, ev.Started(gang.id, 1, 0.0, 2 * k + 2), ev.Exited(gang.id, 1, 0, 0.0))
