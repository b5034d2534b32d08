"""A script without torch that uses a session: counts up a NumPy array, slowly."""

from __future__ import annotations

import sys
import time

import numpy as np

from trainmaster import runtime

steps, pause_s = int(sys.argv[1]), float(sys.argv[2])
with runtime.session() as session:
    state = session.restore(default={"total": np.zeros(3)})
    for step in session.steps(steps, save_every=5, state=lambda: state):
        state["total"] += step
        time.sleep(pause_s)
        session.report(loss=1.0 / (step + 1))
        print("step", step, flush=True)
print("done", int(state["total"][0]), flush=True)
