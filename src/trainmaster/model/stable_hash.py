"""A hash of text that is the same in every process: seeds per job without PYTHONHASHSEED (FNV-1a, 64 bit)."""

from __future__ import annotations


def stable_hash(text: str) -> int:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value
