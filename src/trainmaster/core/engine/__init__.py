"""Rules of the engine as compiled functions over arrays: life cycle, fence, verification, placement, queue passes.

The simulated world is in `core.sim`; the live engine (`engine`) calls these functions one by one.
"""
