"""Trainers that write down themselves when they live, and what follows from their records.

Whether a job ever had two lives at once is a question for the trainers, not for the scheduler's books: each
writes a line to a shared folder every `BEAT_S`, with the time of the machine's clock since boot, which all nodes
of a test cluster share. Python's standard library only: the program runs in any pod.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

BEAT_S = 0.05

PROGRAM = r"""
import os, signal, sys, time
folder, seconds, beat_s = sys.argv[1], float(sys.argv[2]), 0.05
job, generation = os.environ["TRAINMASTER_JOB_NAME"], os.environ["TRAINMASTER_GENERATION"]
member, rank = os.environ["TRAINMASTER_MEMBER"], os.environ.get("RANK", "0")
home = os.path.join(folder, job)
os.makedirs(home, exist_ok=True)
saved = os.path.join(home, "saved-" + rank)
def stop(number, frame):
    raise SystemExit(75)
signal.signal(signal.SIGTERM, stop)
try:
    with open(saved) as file:
        work = float(file.read() or 0)
except OSError:
    work = 0.0
log = os.open(os.path.join(home, "%s.%s.%s.%d.log" % (generation, member, os.uname().nodename, os.getpid())),
              os.O_CREAT | os.O_WRONLY | os.O_APPEND)
def say(text):
    os.write(log, ("%.3f %s\n" % (time.clock_gettime(time.CLOCK_BOOTTIME), text)).encode())
def save():
    new = "%s.%s.%d.new" % (saved, os.uname().nodename, os.getpid())
    with open(new, "w") as file:
        file.write(str(work))
    os.rename(new, saved)
beats = 0
try:
    while work < seconds:
        say("%.2f" % work)
        time.sleep(beat_s)
        work += beat_s
        beats += 1
        if beats % 10 == 0:
            save()
    save()
    say("finished")
except SystemExit:
    save()
    say("stopped")
    raise
"""


@dataclass(frozen=True)
class Life:
    """One process of a trainer: from its first to its last word. Seconds of the clock since boot."""

    job: str
    generation: int
    member: str
    first_s: float
    last_s: float
    last_word: str

    @property
    def over(self) -> bool:
        """Whether its last word said so; a trainer that is killed has no last word."""
        return self.last_word in ("finished", "stopped")


def read_lives(folder: Path, job: str = "*") -> list[Life]:
    lives = []
    for path in sorted(folder.glob(f"{job}/*.log")):
        lines = [line.split(maxsplit=1) for line in path.read_text().splitlines() if " " in line]
        if lines:
            generation, member = path.name.split(".")[:2]
            lives.append(
                Life(path.parent.name, int(generation), member, float(lines[0][0]), float(lines[-1][0]), lines[-1][1])
            )
    return lives


def overlaps(lives: list[Life]) -> list[str]:
    """Two lives of one job at one moment: of different attempts, or of the same member."""
    found = []
    by_job: dict[str, list[Life]] = {}
    for life in lives:
        by_job.setdefault(life.job, []).append(life)
    for job, of_job in sorted(by_job.items()):
        for n, one in enumerate(of_job):
            for other in of_job[n + 1 :]:
                if one.generation == other.generation and one.member != other.member:
                    continue
                both_s = min(one.last_s, other.last_s) - max(one.first_s, other.first_s)
                if both_s >= 0:
                    found.append(
                        f"{job}: {one.member} of generation {one.generation} and {other.member} of generation "
                        f"{other.generation} lived at once for {both_s:.3f} s"
                    )
    return found
