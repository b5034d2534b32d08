"""How a decision of DL2 ends."""

USED_UP, STOPPED, NOT_FINITE, STOPPED_AT_ONCE = 0, 1, 2, 3
