"""Likeness of jobs: which earlier jobs tell how long a job takes that declares nothing.

Levels go from all jobs to those with the very same command. What is believed is passed from level to level: each one
starts from what the level above expects of a job and moves as far as the jobs that it has seen itself allow. The
spread among jobs of a level is learned with them; until then it is presumed.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from typing import NamedTuple

from trainmaster.model.job import JobSpec

MEMORY = 30
"""Jobs alike whose figures count; older ones fade."""
PRESUMED = 2.0
"""How many jobs the presumed spread of a level is worth."""


@dataclass
class LogFigure:
    """Mean and spread of the logarithm of a positive figure, over the last `MEMORY` or so."""

    count: float = 0.0
    mean: float = 0.0
    variance: float = 0.0

    def add(self, value: float) -> None:
        if not 0.0 < value < math.inf:
            return
        self.count = min(self.count + 1.0, MEMORY)
        step = math.log(value) - self.mean
        self.mean += step / self.count
        self.variance += (step * step * (1.0 - 1.0 / self.count) - self.variance) / self.count

    @property
    def median(self) -> float:
        return math.exp(self.mean)

    def sigma(self, before: float) -> float:
        """Spread to expect of the next one, `before` standing in while there are few."""
        return math.sqrt((PRESUMED * before**2 + self.count * self.variance) / (PRESUMED + max(self.count - 1.0, 0.0)))


class Level(NamedTuple):
    """Jobs with the same `key`. `spread`: presumed, of the logarithm among them; `amount`: figures are per unit of it;
    `text`: which jobs these are. Not `narrows`: those that have ended so far are the short ones, so what they show
    does not make the spread smaller."""

    key: str
    spread: float
    text: str
    amount: float = 1.0
    narrows: bool = True


class Expectation(NamedTuple):
    """Of the logarithm of a figure; `jobs` of the last level with any say so, which are `text`."""

    mean: float
    variance: float
    jobs: int = 0
    text: str = ""

    @property
    def median(self) -> float:
        return math.exp(self.mean)

    @property
    def sigma(self) -> float:
        return math.sqrt(self.variance)


def expect(book: Mapping[str, LogFigure], levels: Iterable[Level], start: Expectation) -> Expectation:
    """What to expect of the next job of the last level."""
    found = start
    for level in levels:
        figure = book.get(level.key)
        if figure is None or not figure.count:
            continue
        within = max(figure.sigma(level.spread), 0.0 if level.narrows else level.spread) ** 2
        gain = found.variance / (found.variance + within / figure.count)
        mean = found.mean + gain * (figure.mean + math.log(level.amount) - found.mean)
        found = Expectation(mean, (1.0 - gain) * found.variance + within, round(figure.count), level.text)
    return found


LIKE_IT, SAME_SCRIPT, OF_ITS_USER = "like it", "of the same script", "of its user"
_INTERPRETER = re.compile(r"(?:python|pypy|bash|sh|torchrun|accelerate|deepspeed|mpirun)[\d.]*")
_AMOUNT = re.compile(r"-{0,2}(?:(?:num|max|total|n)[-_]?)?(?:train[-_])?(?:epochs|steps|iters|iterations)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE)


def size_of(spec: JobSpec) -> str:
    return f"{spec.worker.gpu_milli}x{spec.workers_ref}+{spec.servers_ref}"


def owner_of(spec: JobSpec) -> str:
    return str(spec.payload.get("user") or spec.entity or spec.payload.get("namespace") or "")


def script_of(spec: JobSpec) -> str:
    """Name of the script that a command runs; else of its program."""
    command = [str(word) for word in spec.payload.get("command", ())]
    module = next((after for word, after in pairwise(command) if word == "-m"), "")
    script = next((word for word in command[1:] if word.endswith((".py", ".sh"))), module)
    return PurePath(script or (command[0] if command else "")).name


def name_stem(spec: JobSpec) -> str:
    """The name apart from trailing numbers."""
    return re.sub(r"[-_.]?\d+$", "", spec.name)


def levels_of(spec: JobSpec) -> tuple[Level, ...]:
    """From all jobs to those with the same command."""
    owner, script, stem, size = owner_of(spec), script_of(spec), name_stem(spec), size_of(spec)
    levels = [
        Level("all", 1.5, "that ended here", narrows=False),
        Level(f"user:{owner}", 1.2, OF_ITS_USER, narrows=False),
    ]
    if script:
        levels.append(Level(f"script:{owner}:{script}", 0.8, SAME_SCRIPT))
    if spec.model:
        levels.append(Level(f"model:{spec.model}:{spec.batch_size or ''}:{size}", 0.5, LIKE_IT))
    if stem:
        levels.append(Level(f"name:{owner}:{stem}:{size}", 0.5, LIKE_IT))
    words = _words(spec)
    if words:
        amount = spec.work_total or _amount(words)
        size += ":steps" if spec.work_total else ""
        shape = [word if word.endswith((".py", ".sh")) else _NUMBER.sub("#", word) for word in words]
        levels.append(Level(f"arguments:{owner}:{_digest(shape)}:{size}", 0.4, LIKE_IT, amount))
        levels.append(Level(f"command:{owner}:{_digest(words)}:{size}", 0.2, LIKE_IT, amount))
    return tuple(levels)


def of_its_code(levels: Iterable[Level]) -> tuple[Level, ...]:
    """Levels of jobs that run the same code, or say that they are alike."""
    return tuple(level for level in levels if level.text in (LIKE_IT, SAME_SCRIPT))


def _words(spec: JobSpec) -> list[str]:
    """Words of a command without the interpreter and random seeds, which do not change how long it takes."""
    words = [str(word) for word in spec.payload.get("command", ())]
    if words and _INTERPRETER.fullmatch(PurePath(words[0]).name):
        words = words[1:]
    kept: list[str] = []
    for word in words:
        if "seed" in word.lower() or (kept and kept[-1].endswith("seed") and _NUMBER.fullmatch(word)):
            word = "--seed"
        kept.append(word)
    return kept


def _digest(words: list[str]) -> str:
    return hashlib.sha256("\0".join(words).encode(errors="replace")).hexdigest()[:16]


def _amount(words: list[str]) -> float:
    """How many epochs or steps the command asks for; 1 where it does not say."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        flag, _, value = word.partition("=")
        value = value or following
        if _AMOUNT.fullmatch(flag) and _NUMBER.fullmatch(value) and 0.0 < float(value) < math.inf:
            return float(value)
    return 1.0
