"""The fault simulation of the whole control plane: routes, control plane, engine and SQLite store in a bad world.

As `trainmaster.dst.engine.world`, but users speak HTTP to the real application, everything is kept in a real database,
and the store has faults of its own. `python -m trainmaster.dst.control_plane.world --seeds 1000 --processes 2` runs
seeds and fails on any violation; `--replay SEED` tells one of them event by event. See docs/testing.md.
"""

from __future__ import annotations
