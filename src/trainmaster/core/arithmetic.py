"""Python's floor division, which C rounds otherwise, and random numbers as a function of key and counter."""

from __future__ import annotations

import math

MASK = 2**64 - 1
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def floor_div(a: float, b: float) -> float:
    """As `a // b`: C would take the floor of the rounded quotient."""
    rest = math.fmod(a, b)
    quotient = (a - rest) / b
    if rest != 0.0 and (b < 0.0) != (rest < 0.0):
        quotient -= 1.0
    below = float(math.floor(quotient))
    return below + 1.0 if quotient - below > 0.5 else below


def mixed(key: int, counter: int) -> int:
    """64 random bits (SplitMix64's `counter`-th number after `key`)."""
    bits = (key + counter * _STEP) & MASK
    bits = ((bits ^ (bits >> 30)) * _FIRST) & MASK
    bits = ((bits ^ (bits >> 27)) * _SECOND) & MASK
    return bits ^ (bits >> 31)


def uniform(key: int, counter: int) -> float:
    """Between 0 and 1, never 0 or 1."""
    return (float(mixed(key, counter) >> 11) + 0.5) * 2.0**-53


def normal(key: int, counter: int) -> float:
    """Standard normal (Box-Muller); uses the numbers 2 `counter` and 2 `counter` + 1 of the key."""
    radius = math.sqrt(-2.0 * math.log(uniform(key, 2 * counter)))
    return radius * math.cos(2.0 * math.pi * uniform(key, 2 * counter + 1))


def lucky(key: int, counter: int, deviation: float) -> float:
    """A log-normal factor with median 1; `deviation` is that of its logarithm."""
    return math.exp(deviation * normal(key, counter))
