"""A member that trains nothing: it advances at the job's declared speed, reports, saves, resizes and stops.

`python -m trainmaster.runtime.emulated --steps N [--save-every K] [--factor F [--then STEP:F]]`. The speed is
`TRAINMASTER_STEPS_PER_S[TRAINMASTER_ACCELERATOR]` times the number of workers; a speed that is not declared
for the accelerator is divided by `TRAINMASTER_EMULATED_SLOWDOWN`; beside another job on the same devices it keeps the
part of its speed that `TRAINMASTER_EMULATED_SHARING` says. `--factor` makes it faster or slower than was
declared, `--then` from a step on: how jobs are that declare wrongly. The senior worker keeps the count; it leaves
it, tick by tick, in a file of the checkpoint folder that belongs to this attempt, from where the next
senior goes on when it leaves or dies. A new attempt goes on from the last checkpoint only. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from trainmaster.gang.protocol import EXIT_STOPPED, SERVER, Hello, Membership, Progress
from trainmaster.model.errors import InputError
from trainmaster.runtime.link import AgentLink
from trainmaster.runtime.process_env import ProcessEnv, read_process_env

FOLLOW_S = 600.0
"""How long a member waits for its first membership before it gives up."""


@dataclass
class SavedWork:
    """What outlives a member: `saved` outlives the attempt too."""

    folder: Path | None
    generation: int

    def saved(self) -> float:
        return _read(self.folder, "emulated-saved.json")

    def save(self, work: float) -> None:
        _write(self.folder, "emulated-saved.json", work)

    def counted(self) -> float:
        return _read(self.folder, f"emulated-count-{self.generation}.json")

    def count(self, work: float) -> None:
        _write(self.folder, f"emulated-count-{self.generation}.json", work)


def _read(folder: Path | None, name: str) -> float:
    if folder is None:
        return 0.0
    try:
        return float(json.loads((folder / name).read_text())["work"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def _write(folder: Path | None, name: str, work: float) -> None:
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{name}.{os.getpid()}"
    temporary.write_text(json.dumps({"work": work}))
    temporary.replace(folder / name)


@dataclass
class Member:
    """One emulated member; `run` gives its exit code."""

    place: ProcessEnv
    steps: float
    save_every: float
    tick_s: float
    link: AgentLink | None
    factors: tuple[tuple[float, float], ...] = ((0.0, 1.0),)
    """(from this step on, so many times the declared speed), rising."""
    terminated: bool = False

    def _factor(self, work: float) -> float:
        return [factor for step, factor in self.factors if step <= work][-1]

    def run(self) -> int:
        saved_work = SavedWork(self.place.checkpoint_dir, self.place.generation)
        declared = self._speed_per_worker()
        work = saved = saved_work.saved()
        version, workers, senior = 0, self.place.world_size, self.place.rank == 0
        then_s = time.monotonic()
        while True:
            membership = self._newer(version)
            if membership is not None and self.link is not None:
                own = membership.find(self.place.member)
                if own is None:
                    return 0  # resized away
                if version == 0:
                    then_s = time.monotonic()  # waiting for the others was no work
                version, workers = membership.version, len(membership.workers)
                senior = own.rank == 0 and own.role != SERVER
                self.link.joined(version)
            now_s = time.monotonic()
            work = max(work, saved_work.counted())
            speed = declared * self._factor(work) * self.place.kept_beside_others()
            if senior:
                work = min(self.steps, work + speed * workers * (now_s - then_s))
                saved_work.count(work)
                if work >= saved + self.save_every or work >= self.steps:
                    saved_work.save(saved := work)
                if self.link is not None:
                    self.link.report(Progress(work, speed * workers, _loss(work), saved))
            then_s = now_s
            if work >= self.steps and self.place.role != SERVER:
                if senior and self.link is not None:
                    self.link.report(Progress(work, None, _loss(work), saved, complete=True))
                return 0
            if self.terminated or (self.link is not None and self.link.stop_notice is not None):
                if senior:
                    saved_work.save(work)
                    if self.link is not None:
                        self.link.report(Progress(work, None, _loss(work), work))
                return EXIT_STOPPED
            time.sleep(self.tick_s)

    def _newer(self, version: int) -> Membership | None:
        """Also waits for the first one: nobody works before the gang is complete."""
        if self.link is None:
            return None
        if version == 0:
            return self.link.wait_for_membership(0, FOLLOW_S)
        membership = self.link.membership
        return membership if membership is not None and membership.version > version else None

    def _speed_per_worker(self) -> float:
        rates, accelerator = self.place.steps_per_s, self.place.accelerator
        if accelerator in rates:
            return rates[accelerator]  # declared for this very type: nothing to slow down
        if len(rates) == 1:
            rate = next(iter(rates.values()))
        elif not rates:
            rate = 1.0
        else:
            raise InputError(
                f"TRAINMASTER_STEPS_PER_S has no speed for accelerator {accelerator!r}",
                f"one of {', '.join(sorted(rates))}",
                "Declare the speed of the job on every accelerator it accepts.",
            )
        return rate / self.place.emulated_slowdown


def _factors(first: float, then: str) -> tuple[tuple[float, float], ...]:
    try:
        later = [tuple(float(number) for number in then.split(":"))] if then else []
        factors = ((0.0, first), *((step, factor) for step, factor in later))
    except ValueError:
        raise InputError(f"invalid change of speed '{then}'", "STEP:FACTOR, such as 50:0.5", column="--then") from None
    if not all(factor > 0 and step >= 0 for step, factor in factors):
        raise InputError("a factor that is not positive", "such as 0.8", column="--factor")
    return factors


def _loss(work: float) -> float:
    """Falls as 1/(k+1) towards 0.1, so that loss curves have something to fit."""
    return 0.1 + 1.0 / (1.0 + 0.01 * work)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="trainmaster.runtime.emulated", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--steps", type=float, help="work in all; default TRAINMASTER_STEPS, else 100")
    parser.add_argument("--save-every", type=float, default=10.0, help="steps between checkpoints")
    parser.add_argument("--tick-s", type=float, default=0.05)
    parser.add_argument("--factor", type=float, default=1.0, help="real speed over the declared one")
    parser.add_argument("--then", default="", metavar="STEP:FACTOR", help="another factor from a step on")
    options = parser.parse_args(arguments)
    try:
        factors = _factors(options.factor, options.then)
        place = read_process_env()
        steps = options.steps if options.steps is not None else place.steps
        link = None
        if place.managed:
            link = AgentLink(place.agent, Hello(place.agent_token, place.member, os.getpid(), elastic=True))
        member = Member(place, 100.0 if steps is None else steps, options.save_every, options.tick_s, link, factors)
        signal.signal(signal.SIGTERM, lambda *_: setattr(member, "terminated", True))
        if link is not None:
            link.open()
        code = member.run()
        if link is not None:
            link.close()
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return code


if __name__ == "__main__":
    sys.exit(main())
