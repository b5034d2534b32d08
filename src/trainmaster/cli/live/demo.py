"""`trainmaster demo`: a service in a temporary home runs eight small training jobs, and one can watch it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from trainmaster.cli.shared.output import one_message, to_json, write_text
from trainmaster.cli.shared.times import short
from trainmaster.model.errors import InputError, TrainmasterError

if TYPE_CHECKING:
    from trainmaster.client.client import Client

NODES = "v100:1x2,k80:1x2"
POLICY = "gavel-max-min"
ROUND_S = 30
LIMIT_S = 290.0
_EVENTS_SHOWN = 8


def _jobs(examples: Path) -> list[dict[str, Any]]:
    """Rigid, elastic, parameter server and plain; with weights and deadlines. Nobody declares a speed: it is this
    machine's, and the service measures it."""

    def request(name: str, script: str, *arguments: str, **more: Any) -> dict[str, Any]:
        command = [sys.executable, str(examples / script), *arguments]
        return {"name": name, "command": command, "workdir": str(examples), "env": _environment(), **more}

    pictures, language = {"model": "pictures"}, {"model": "language"}
    one, two, up_to_two = ({"min": low, "max": high} for low, high in ((1, 1), (2, 2), (1, 2)))
    return [
        request("pictures-rigid", "image_classifier.py", "--epochs", "2", workers=one, steps=256, **pictures),
        request("language-elastic", "transformer_lm.py", "--steps", "150", workers=up_to_two, steps=150, **language),
        request(
            "factors-ps", "matrix_factorisation_ps.py", "--steps", "600", workers=one, servers=one, steps=600,
            model="factors",
        ),
        request("plain", "plain_script.py", workers=one),
        request("pictures-urgent", "image_classifier.py", "--epochs", "2", workers=one, steps=256, weight=3.0,
                deadline_s=150.0, **pictures),
        request("pictures-pair", "image_classifier.py", "--epochs", "2", workers=two, steps=256, **pictures),
        request("language-heavy", "transformer_lm.py", "--steps", "80", workers=one, steps=80, weight=2.0,
                **language),
        request("pictures-late", "image_classifier.py", "--epochs", "3", workers=up_to_two, steps=384,
                deadline_s=280.0, deadline_kind="soft", **pictures),
    ]  # fmt: skip


def _environment() -> dict[str, str]:
    return {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@one_message
def demo(
    simulated: Annotated[
        bool, typer.Option("--simulated", help="No processes: a trace of 200 jobs under several policies.")
    ] = False,
    summary: Annotated[Path | None, typer.Option(help="Write what happened to this file, as JSON.")] = None,
    keep: Annotated[Path | None, typer.Option(help="Keep the home of the service here.")] = None,
) -> None:
    """Watch small PyTorch jobs scheduled, resized and finished, with their ETA."""
    if simulated:
        from trainmaster.cli.simulation.demo_simulated import simulated_demo

        simulated_demo()
        return
    examples = _examples()
    begun_s = time.monotonic()
    with _home(keep) as home, _service(home) as client:
        typer.echo(f"A service with {NODES} (emulated on this machine's cores), {POLICY}, rounds of {ROUND_S} s.")
        story = _Story()
        for request in _jobs(examples):
            story.ids.append(client.submit(request)["id"])
        try:
            _watch(client, story, begun_s)
        except KeyboardInterrupt:
            typer.echo("interrupted; ending the jobs", err=True)
        accuracy = client.get("/accuracy")
        jobs = story.jobs
    rows = [
        judged(jobs[job_id], story.said.get(job_id, []), story.resizes.get(job_id, 0))
        for job_id in story.ids
        if job_id in jobs
    ]
    _print(rows, time.monotonic() - begun_s)
    if summary is not None:
        write_text(summary, to_json({"jobs": rows, "accuracy": accuracy, "seconds": time.monotonic() - begun_s}))
    if any(row["state"] != "finished" for row in rows) or len(rows) < len(story.ids):
        raise typer.Exit(1)


def _examples() -> Path:
    folder = Path(__file__).resolve().parents[4] / "examples"
    if not (folder / "image_classifier.py").is_file():
        raise InputError(
            "the demo's training scripts are not here",
            "a checkout of the project, with its folder `examples`",
            "`trainmaster demo --simulated` needs nothing.",
        )
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise InputError(
            "PyTorch is not installed", "the extra `train`",
            "Install it with `pip install 'trainmaster[train]'`, or try `trainmaster demo --simulated`.",
        )  # fmt: skip
    return folder


@contextmanager
def _home(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        yield keep.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="trainmaster-demo-", ignore_cleanup_errors=True) as folder:
        yield Path(folder) / "home"


@contextmanager
def _service(home: Path) -> Iterator[Client]:
    from trainmaster.client.client import Client

    command = [sys.executable, "-m", "trainmaster", "up", "--home", str(home), "--port", "0", "--nodes", NODES]
    command += ["--policy", POLICY, "--round", str(ROUND_S), "--stop-jobs", "--quiet"]
    process = subprocess.Popen(command)
    try:
        until_s = time.monotonic() + 60.0
        while not (home / "address").exists():
            if process.poll() is not None or time.monotonic() > until_s:
                raise TrainmasterError("the service did not start; `trainmaster doctor` says what may be wrong")
            time.sleep(0.1)
        with Client.find(home) as client:
            yield client
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Said(NamedTuple):
    """What was predicted at some instant: the finish, and between which instants it is 9 times of 10."""

    at: float
    early: float
    middle: float
    late: float


@dataclass
class _Story:
    """What was seen on the way."""

    ids: list[str] = field(default_factory=list)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    said: dict[str, list[Said]] = field(default_factory=dict)
    resizes: dict[str, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    next_event: int = 0

    def look(self, client: Client) -> list[str]:
        """Read the state of things; returns new lines of the event log."""
        self.jobs = {job["id"]: job for job in client.get("/jobs", {"limit": 100})["jobs"]}
        now = time.time()
        for job_id, job in self.jobs.items():
            if job["eta"] is not None:
                early_s, middle_s, late_s = (now + job["eta"][point] for point in ("p05_s", "p50_s", "p95_s"))
                self.said.setdefault(job_id, []).append(Said(now, early_s, middle_s, late_s))
        page = client.get("/events", {"after": self.next_event, "limit": 200})
        self.next_event = page["next"]
        names = {job_id: job["name"] for job_id, job in self.jobs.items()}
        new = []
        for event in page["events"]:
            text = event["text"]
            if event["kind"] == "resized":
                self.resizes[event["job"]] = self.resizes.get(event["job"], 0) + 1
            for job_id in sorted(names, key=len, reverse=True):
                text = text.replace(job_id, names[job_id])
            new.append(f"{time.strftime('%H:%M:%S', time.localtime(event['at']))}  {text}")
        self.lines += new
        return new

    @property
    def over(self) -> bool:
        return len(self.jobs) == len(self.ids) and all(job["ended"] is not None for job in self.jobs.values())


def _watch(client: Client, story: _Story, begun_s: float) -> None:
    """On a terminal a picture that changes in place; else the event log, line by line."""
    from trainmaster.cli.live.queue import in_order
    from trainmaster.cli.live.queue_table import queue_lines
    from trainmaster.cli.shared.screen import coloured, cut, paint, screen_width

    drawn = 0
    while time.monotonic() - begun_s < LIMIT_S:
        new = story.look(client)
        if not sys.stdout.isatty():
            for line in new:
                typer.echo(line)
        else:
            width, colours = screen_width(), coloured()
            lines = queue_lines(in_order(list(story.jobs.values())), width, colours)
            lines += ["", *(paint(cut(line, width), "dim", colours) for line in story.lines[-_EVENTS_SHOWN:])]
            back = f"\x1b[{drawn}A" if drawn else ""
            sys.stdout.write(back + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
            sys.stdout.flush()
            drawn = len(lines)
        if story.over:
            return
        time.sleep(0.5)


def judged(job: dict[str, Any], said: list[Said], resizes: int) -> dict[str, Any]:
    """One job at the end, with what was predicted when half of its life had passed; if nothing was known of it by then,
    with the first prediction after that."""
    ended, submitted = job["ended"], job["submitted"]
    row: dict[str, Any] = {
        "name": job["name"],
        "state": job["state"],
        "waited_s": None if job["started"] is None else job["started"] - submitted,
        "took_s": None if ended is None else ended - submitted,
        "attempts": job["attempts"],
        "preemptions": job["preemptions"],
        "resizes": resizes,
        "deadline_met": None if job["slack_s"] is None or ended is None else job["slack_s"] >= 0,
        "said": None,
        "error": None,
        "held": None,
    }
    if job["state"] == "finished" and ended is not None:
        before = [word for word in said if word.at < ended]
        by_half = [word for word in before if word.at <= submitted + row["took_s"] / 2]
        for word in by_half[-1:] or before[:1]:
            names = ("at_s", "early_s", "middle_s", "late_s")
            row["said"] = dict(zip(names, (instant - submitted for instant in word), strict=True))
            row["error"] = (word.middle - ended) / row["took_s"]
            row["held"] = word.early <= ended <= word.late
    return row


def _print(rows: list[dict[str, Any]], seconds: float) -> None:
    from trainmaster.cli.shared.screen import cell, show_line, show_table, state_cell

    heads = ("JOB", "STATE", "WAITED", "TOOK", "PREDICTED", "9 TIMES OF 10", "AFTER", "OFF BY", "STOPS", "RESIZES",
             "DEADLINE")  # fmt: skip
    shown = []
    for row in rows:
        met, said = row["deadline_met"], row["said"]
        predicted = ("-", "", "", "")
        if said is not None:
            band = f"{short(said['early_s'])} to {short(said['late_s'])}"
            predicted = (short(said["middle_s"]), band, short(said["at_s"]), f"{row['error']:+.0%}")
        texts = (short(row["waited_s"]), short(row["took_s"]), *predicted, row["preemptions"], row["resizes"])
        judged = "" if met is None else "met" if met else "missed"
        shown.append([cell(row["name"]), state_cell(row["state"]), *map(cell, (*texts, judged))])
    show_line("")
    show_table(heads, shown, right=heads[2:10])
    show_line("")
    show_line(f"{len(rows)} jobs in {short(seconds)}. All processes and files were removed.")
    for line in verdict(rows):
        show_line(line)
    show_line("Next: `trainmaster up` in one terminal, `trainmaster submit -- python train.py` in another.")


def verdict(rows: list[dict[str, Any]]) -> list[str]:
    """How good the predictions of the finish were."""
    told = [row for row in rows if row["error"] is not None]
    if not told:
        return ["Nothing was predicted: no job had reported before it ended."]
    off = median(abs(row["error"]) for row in told)
    held = sum(row["held"] for row in told)
    lines = [
        f"Predictions at half-life, or the first ones after it: off by {off:.0%} of the job's life, in the median.",
        f"{held} of {len(told)} jobs ended within the band of 9 times of 10.",
    ]
    silent = [row["name"] for row in rows if row["state"] == "finished" and row["error"] is None]
    if silent:
        lines.append(
            f"Of {', '.join(silent)} nothing was known before the end: no report, and no job like it had finished."
        )
    return lines
