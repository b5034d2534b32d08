"""Placement strategies: on which devices of which nodes a gang goes. Shared by every policy.

`pack`       fewest nodes, the fullest ones first, one rack if possible
`spread`     one worker at a time on the emptiest node
`first-fit`  nodes in order
`best-fit`   like pack, judged by what is left of GPUs, CPU and memory together
`count`      GPUs are only counted: workers may be split anywhere, CPU and memory do not matter

`core.engine.placement` carries them out.
"""

from __future__ import annotations

from enum import IntEnum

from trainmaster.model.errors import InputError


class Strategy(IntEnum):
    PACK = 0
    SPREAD = 1
    FIRST_FIT = 2
    BEST_FIT = 3
    COUNT = 4


_NAMES = {
    "pack": Strategy.PACK,
    "spread": Strategy.SPREAD,
    "first-fit": Strategy.FIRST_FIT,
    "best-fit": Strategy.BEST_FIT,
    "count": Strategy.COUNT,
}
STRATEGY_NAMES = tuple(_NAMES)


def parse_strategy(name: str) -> Strategy:
    if name not in _NAMES:
        raise InputError(f"unknown placement '{name}'", expected="one of " + ", ".join(STRATEGY_NAMES))
    return _NAMES[name]


def strategy_name(strategy: Strategy) -> str:
    return next(name for name, value in _NAMES.items() if value == strategy)
