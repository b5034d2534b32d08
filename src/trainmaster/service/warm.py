"""Compile the kernels of the policies into the cache, for images: `python -m trainmaster.service.warm [POLICY...]`."""

from __future__ import annotations

import sys

from trainmaster.policies.registry import create
from trainmaster.sim.run import load_kernels

DEFAULT = ("fifo", "srtf", "gavel-max-min", "deadline")


def main(names: list[str]) -> None:
    for name in names or DEFAULT:
        load_kernels(create(name))


if __name__ == "__main__":
    main(sys.argv[1:])
