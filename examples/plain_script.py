"""A plain script: it imports nothing of Trainmaster, and runs as it is.

    python examples/plain_script.py
    trainmaster submit --gpus 1 -- python examples/plain_script.py

It fits a line by gradient descent. A scheduler that has to take its place ends it by SIGTERM; a script that wants
to keep what it has done saves it then, as this one does, in the folder it is given.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

STEPS = 400
folder = Path(os.environ.get("TRAINMASTER_CHECKPOINT_DIR", "."))
saved = folder / "plain_script.json"
state = json.loads(saved.read_text()) if saved.exists() else {"step": 0, "slope": 0.0, "offset": 0.0}


def save() -> None:
    folder.mkdir(parents=True, exist_ok=True)
    temporary = saved.with_suffix(".new")
    temporary.write_text(json.dumps(state))
    temporary.replace(saved)


def stop(*_: object) -> None:
    save()
    print(f"stopped and saved at step {state['step']}", flush=True)
    sys.exit(143)


signal.signal(signal.SIGTERM, stop)
points = [(x / 10, 3.0 * x / 10 - 1.0) for x in range(-20, 21)]
while state["step"] < STEPS:
    errors = [(state["slope"] * x + state["offset"] - y, x) for x, y in points]
    state["slope"] -= 0.05 * sum(error * x for error, x in errors) / len(points)
    state["offset"] -= 0.05 * sum(error for error, _ in errors) / len(points)
    state["step"] += 1
    if state["step"] % 50 == 0:
        loss = sum(error * error for error, _ in errors) / len(points)
        print(f"step {state['step']}: loss {loss:.6f}", flush=True)
    time.sleep(0.01)  # a step of a real model takes longer
print(f"y = {state['slope']:.3f} x + {state['offset']:.3f} (true: y = 3 x - 1)")
saved.unlink(missing_ok=True)
