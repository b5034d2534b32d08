"""The command line of the service's fault simulation; the sweep is that of the engine's."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from trainmaster.dst.control_plane.world import ServiceWorld, run_seed
from trainmaster.dst.engine import world_cli


def main(arguments: list[str] | None = None) -> None:
    world_cli.main(arguments, "trainmaster.dst.control_plane.world", run_seed, replay)


def replay(seed: int) -> int:
    """Print the whole story of a seed; the same bytes each time."""
    folder = Path(tempfile.mkdtemp(prefix="trainmaster-world-"))
    try:
        world = ServiceWorld(seed, folder)
        outcome = world.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"seed {seed}: policy {outcome.policy}, cluster {world.scenario.cluster.nodes_text()}")
    print(f"faults: {world.faults.rates}; a commit fails with probability {world.store_fails:.4f}")
    for line in world.story.lines():
        print(line)
    print(world_cli.summary(outcome))
    return 1 if outcome.violation else 0
