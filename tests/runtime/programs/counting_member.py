"""A member that counts: every step adds 1 to every parameter; after each acknowledged step it notes how many.

Arguments: folder for notes, floats, steps, then options of `join` as JSON, then seconds per step.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType

from trainmaster.runtime import ps
from trainmaster.runtime.ps.exchange import Exchange
from trainmaster.runtime.ps.server import ShardServer


def tell_state(_: int, frame: FrameType | None) -> None:
    """For a test that waited in vain: where this member is, and what its side of the exchange knows."""
    traceback.print_stack(frame)
    for known in gc.get_objects():
        if isinstance(known, Exchange):
            print({name: value for name, value in vars(known).items() if name in EXCHANGE_STATE}, flush=True)
        elif isinstance(known, ShardServer):
            print(vars(known.block_store), vars(known.transitions), known._tasks, sep="\n", flush=True)


EXCHANGE_STATE = ("map", "seq", "clock", "work", "_wires", "_answers", "_op", "_todo", "_sent", "_moved_at")
signal.signal(signal.SIGUSR1, tell_state)
ps.serve_if_server()

import numpy as np  # noqa: E402

folder, floats, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
options = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
step_s = float(sys.argv[5]) if len(sys.argv) > 5 else 0.0
member = os.environ["TRAINMASTER_MEMBER"]
notes = os.open(folder / f"{member}.{os.environ['TRAINMASTER_GENERATION']}.acked", os.O_CREAT | os.O_WRONLY)
ends = (folder / f"{member}.times").open("w")

with ps.join({"w": np.zeros(floats, np.float32)}, ps.Sgd(lr=1.0), block_bytes=16384, **options) as job:
    for step in job.steps(steps):
        job.gradients["w"][...] = -1.0
        began_s = time.monotonic()
        job.push_pull(loss=1.0 / (1.0 + job.work))
        ends.write(f"{began_s} {time.monotonic()} {job.work}\n")
        ends.flush()
        os.pwrite(notes, str(step + 1).encode(), 0)
        time.sleep(step_s)
    spread = (float(job.parameters["w"].min()), float(job.parameters["w"].max()))
    (folder / f"{member}.seen").write_text(json.dumps(spread))
