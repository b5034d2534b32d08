"""The story of a fault simulation, told by another process."""

from __future__ import annotations

import subprocess
import sys


def check_replay(module: str, seed: int = 7) -> None:
    """Same seed, same bytes, whatever the hash seed."""
    told = []
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", module, "--replay", str(seed)]
        env = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)}
        told.append(subprocess.run(command, capture_output=True, check=True, env=env).stdout)
    assert told[0] == told[1]
    assert told[0].count(b"\n") > 100
