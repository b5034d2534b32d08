"""The engine's meaning, written once and compiled ahead of time: job arrays, free resources, packed allocations, life
cycle, verification, dispatch, placement, queue passes, the simulated backend and the run loop.

Modules with a `.pxd` beside them are compiled (`hatch_build.py`). Nothing here does I/O or knows a policy by name.
"""

from trainmaster.core.build_form import check_fresh

check_fresh()
