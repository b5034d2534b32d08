"""The local backend: turns commands into supervisors and orders to them, and what they say into events.

One thread does everything; `perform` and `observe` only leave a note for it. It knows nothing that is not
also on disk or in a supervisor, so a new process finds all attempts again (`start` adopts them).
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import selectors
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from trainmaster.backends.local import dead_runs
from trainmaster.backends.local.control_socket import LiveRun
from trainmaster.backends.local.devices import Devices, Find, crowding, real_devices, usable_cores
from trainmaster.backends.local.launch_record import record_to_json
from trainmaster.backends.local.run_folder import (
    EndRecord,
    JobFolder,
    JobLock,
    RunFolder,
    checkpoint_folder,
    dial,
    end_from_json,
    job_folder,
    job_folders,
    read_json,
    replace_json,
    saved_work,
    tail_of,
)
from trainmaster.backends.local.shared_slots import SharedSlots
from trainmaster.backends.local.site import Options, Site, launch_record, seats_of
from trainmaster.gang.actions import EXITED, START_FAILED, seat_to_json
from trainmaster.gang.failure_text import excerpt
from trainmaster.model import event as ev
from trainmaster.model.cluster import Cluster
from trainmaster.model.codec import spec_from_json, spec_to_json
from trainmaster.model.command import Command, Launch, Resize, Stop
from trainmaster.model.errors import InputError
from trainmaster.model.job import JobId, JobSpec
from trainmaster.model.lease import LeaseRule

SUPERVISOR = "trainmaster.backends.local.supervisor"
LOOK_AGAIN_S = 0.02
"""How often a supervisor that does not answer is looked at."""
REMEMBER_S = 60.0
"""So long after its end was passed on, an attempt stays in inventories."""
HOME_PATIENCE_S = 2.0
END_PATIENCE_S = 15.0
AFTER_FAULT_S = 0.2
OUTPUT_BYTES = 65_536
"""So much of a log is searched for the cause of a failure."""
_MEMBER = re.compile(r"(?:worker|server)-\d+")


class LocalBackend:
    """See `trainmaster.engine.ports.Backend`. `deliver` is called from the backend's thread."""

    def __init__(
        self,
        cluster: Cluster,
        home: Path,
        lease: LeaseRule,
        deliver: Callable[[ev.Event], None],
        now_ms: Callable[[], int],
        slowdown: Mapping[str, float],
        *,
        options: Options | None = None,
        devices: Devices | None = None,
        find: Find | None = None,
    ) -> None:
        found = real_devices(cluster, emulated=bool(slowdown), find=find) if devices is None else devices
        crowded = crowding(cluster, slowdown, len(usable_cores()))
        self._site = Site(cluster, found, dict(slowdown), lease, options or Options(), crowded)
        self._home = home.resolve()
        self._deliver = deliver
        self._now_ms = now_ms
        self._notes: deque[Command | str | None] = deque()
        self._wake_out, self._wake_in = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run_thread, name="trainmaster-local", daemon=True)
        self._home_lock: JobLock | None = None
        # The thread's own.
        self._runs: dict[str, LiveRun] = {}
        self._records: dict[str, tuple[int, EndRecord, float]] = {}
        """Last ended attempt by job: generation, outcome, and when inventories may forget it."""
        kept_beside = self._site.options.kept_beside
        self._slots = None if kept_beside is None else SharedSlots(cluster, kept_beside)
        self._seen_up_to = 0
        self._unreaped: list[subprocess.Popen[bytes]] = []
        self._closing = False
        self._leaving_jobs = True
        self.failure: BaseException | None = None
        """The last fault of the thread itself, if there was one; it goes on."""

    # -- for the driver ------------------------------------------------------------------------------

    def start(self) -> None:
        """Take the home folder, adopt what runs there, and begin. `InputError` if another service has it."""
        for folder in (self._home, self._home / "jobs", self._home / "checkpoints"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._home_lock = JobLock.take(self._home / "backend.lock", HOME_PATIENCE_S)
        if self._home_lock is None:
            raise InputError(
                f"the home folder '{self._home}' is in use by another service",
                "a home folder of its own for each service",
                "Stop the other service, or choose another folder with --home.",
            )
        for end in (self._wake_out, self._wake_in):
            end.setblocking(False)
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._adopt()
        self._thread.start()

    def perform(self, command: Command) -> None:
        self._note(command)

    def observe(self) -> None:
        self._note(None)

    def close(self, end_jobs: bool = False, timeout_s: float | None = None) -> None:
        """Stop the thread. Jobs go on and are adopted at the next start, unless they are to end too."""
        if self._thread.is_alive():
            self._note("end" if end_jobs else "close")
            self._thread.join(timeout_s or self._site.options.grace_s + END_PATIENCE_S)
        if self._home_lock is not None:
            self._home_lock.release()
            self._home_lock = None

    def _note(self, note: Command | str | None) -> None:
        self._notes.append(note)
        with contextlib.suppress(OSError):  # full: it wakes anyway
            self._wake_in.send(b"x")

    # -- the thread ----------------------------------------------------------------------------------

    def _run_thread(self) -> None:
        try:
            while not (self._closing and (self._leaving_jobs or not self._runs)):
                try:
                    self._turn()
                except Exception as error:  # one bad case must not end the watch over all other jobs
                    self.failure = error
                    traceback.print_exc()
                    time.sleep(AFTER_FAULT_S)
        finally:
            for run in self._runs.values():
                run.hang_up()
            self._selector.close()

    def _turn(self) -> None:
        waiting = any(run.connection is None for run in self._runs.values()) or bool(self._unreaped)
        for key, _ in self._selector.select(LOOK_AGAIN_S if waiting else None):
            if key.fileobj is self._wake_out:
                with contextlib.suppress(BlockingIOError):
                    self._wake_out.recv(4096)
            else:
                self._hear(key.data)
        while self._notes:
            self._take_note(self._notes.popleft())
        for run in sorted(self._runs.values(), key=lambda run: run.job_id):
            if run.connection is None:
                self._look_after(run)
        self._unreaped = [process for process in self._unreaped if process.poll() is None]

    def _take_note(self, note: Command | str | None) -> None:
        if note is None:
            self._take_inventory()
        elif isinstance(note, str):
            self._closing, self._leaving_jobs = True, note == "close"
            if note == "end":
                for run in self._runs.values():
                    run.order("stop", 0, why="the service ends its jobs")
        else:
            self._seen_up_to = max(self._seen_up_to, note.seq)
            if isinstance(note, Launch):
                self._launch(note)
            elif isinstance(note, Stop):
                self._stop(note)
            else:
                self._resize(note)

    # -- commands ------------------------------------------------------------------------------------

    def _launch(self, command: Launch) -> None:
        job_id, generation = command.job_id, command.generation
        run = self._runs.get(job_id)
        if run is not None and run.generation == generation:
            run.asked_start = True
            if run.started:  # a repeated command: answer again
                self._tell(ev.Started(job_id, generation, run.work_at_start, self._now_ms()))
            return
        job = job_folder(self._home, job_id)
        newest = max((known.generation for known in job.runs()), default=0)
        if generation <= newest:
            self._answer_again(job_id, generation)
            return
        node = command.allocation.parts[0].node
        if run is not None:
            why = f"attempt {run.generation} of the job still runs"
            self._tell(ev.StartFailed(job_id, generation, why, node))
            return
        checkpoint = checkpoint_folder(self._home, job_id)
        try:
            record = launch_record(self._site, command, checkpoint, secrets.token_hex(16))
        except ValueError as error:
            self._tell(ev.StartFailed(job_id, generation, str(error)))
            return
        folder = job.run(generation)
        try:
            folder.path.mkdir(mode=0o700, parents=True)
            checkpoint.mkdir(mode=0o700, parents=True, exist_ok=True)
            if record.account is not None:
                record.account.let_in(job.path, folder.path)
                record.account.give(checkpoint)
            data = {**record_to_json(record), "spec": spec_to_json(command.spec), "node": node}
            replace_json(folder.launch, data, durable=True)
            if self._slots is not None:
                self._slots.placed(folder, command.spec, command.allocation)
            run = LiveRun(job, folder, job_id, generation, node, told_seq=command.seq)
            run.process, connection = _spawn(folder)
        except OSError as error:  # disk full, no more processes...: nothing runs, and nothing will
            with contextlib.suppress(OSError):
                dead_runs.fence(job, generation, str(error))
            if self._slots is not None:
                self._slots.ended(job_id)
            self._tell(ev.StartFailed(job_id, generation, f"this machine could not start the job: {error}", node))
            return
        self._runs[job_id] = run
        self._records.pop(job_id, None)
        self._connect(run, connection)

    def _stop(self, command: Stop) -> None:
        job_id, generation = command.job_id, command.generation
        run = self._runs.get(job_id)
        if run is not None and run.generation == generation:
            run.order("stop", command.seq, why=command.why)
            return
        job = job_folder(self._home, job_id)
        if all(known.generation < generation for known in job.runs()):
            dead_runs.fence(job, generation, command.why)
        self._answer_again(job_id, generation)

    def _resize(self, command: Resize) -> None:
        job_id, generation = command.job_id, command.generation
        run = self._runs.get(job_id)
        if run is None or run.generation != generation:
            self._answer_again(job_id, generation)
            return
        if run.applied_seq >= command.seq:
            run.told_seq = max(run.told_seq, command.seq)
            work = run.work(run.work_at_start)
            self._tell(ev.Resized(job_id, generation, command.seq, work, self._now_ms()))
            return
        run.asked_seq = command.seq
        spec = self._spec_of(run)
        if self._slots is not None:
            self._slots.placed(run.folder, spec, command.allocation)
        seats = seats_of(self._site, spec, command.allocation)
        run.order("resize", command.seq, slots=[seat_to_json(seat) for seat in seats])

    def _spec_of(self, run: LiveRun) -> JobSpec:
        return spec_from_json((read_json(run.folder.launch) or {}).get("spec"))

    def _answer_again(self, job_id: str, generation: int) -> None:
        """A command for an attempt that has ended: its report may not have been kept, so repeat it."""
        run = self._runs.get(job_id)
        if run is not None and run.generation >= generation:
            return
        outcome = dead_runs.end_of(job_folder(self._home, job_id).run(generation))
        if outcome is not None:
            self._pass_on(job_id, generation, outcome, told_started=True)

    # -- supervisors -------------------------------------------------------------------------------------

    def _connect(self, run: LiveRun, connection: socket.socket) -> None:
        connection.setblocking(False)
        run.connection = connection
        self._selector.register(connection, selectors.EVENT_READ, run)
        run.send()

    def _hear(self, run: LiveRun) -> None:
        if run.connection is None:
            return
        messages, dead = run.receive()
        for message in messages:
            if "status" in message:
                run.take_status(message["status"])
                self._pass_on_status(run)
            elif "ended" in message:
                run.last_word = message["ended"]
        if dead:
            self._selector.unregister(run.connection)
            run.hang_up()
            self._look_after(run)

    def _look_after(self, run: LiveRun) -> None:
        """No line to the supervisor: it has ended, was killed, or is not ready yet."""
        try:
            outcome = dead_runs.find_end(run.job, run.folder, witnessed=run.witnessed and not self._closing)
        except OSError:  # the disk is full: what the supervisor said last is all there is, for now
            outcome = None if run.last_word is None else end_from_json(run.last_word)
        if outcome is None:
            with contextlib.suppress(OSError):
                self._connect(run, dial(run.folder.control_socket))
            return
        del self._runs[run.job_id]
        if self._slots is not None:
            self._slots.ended(run.job_id)
        if run.process is not None:
            self._unreaped.append(run.process)
        self._pass_on(run.job_id, run.generation, outcome, run.told_started)

    def _adopt(self) -> None:
        """Find every attempt of the home folder. The newest of a job counts; older ones have ended."""
        for job in job_folders(self._home):
            runs = job.runs()
            for folder in runs:
                if not folder.ended.exists():
                    launch = read_json(folder.launch) or {}
                    self._seen_up_to = max(self._seen_up_to, int(launch.get("seq", 0)))
                    run = self._runs[job.job_id] = self._adopted(job, folder, launch)
                    if self._slots is not None and "spec" in launch:  # else it ended before its record was written
                        with contextlib.suppress(InputError):  # a damaged record stops nobody else
                            self._slots.adopted(folder, self._spec_of(run))
                elif folder == runs[-1] and (outcome := dead_runs.end_of(folder)) is not None:
                    self._seen_up_to = max(self._seen_up_to, outcome.seq)
                    self._records[job.job_id] = (folder.generation, outcome, time.monotonic() + REMEMBER_S)

    def _adopted(self, job: JobFolder, folder: RunFolder, launch: dict[str, object]) -> LiveRun:
        node = launch.get("node", 0)
        run = LiveRun(job, folder, job.job_id, folder.generation, node if isinstance(node, int) else 0)
        saved = saved_work(job.work)
        run.status = {"work_at_start": saved, "work": None, "saved": saved}
        run.unheard = True
        return run

    # -- events --------------------------------------------------------------------------------------

    def _tell(self, event: ev.Event) -> None:
        self._deliver(event)

    def _pass_on_status(self, run: LiveRun) -> None:
        job_id, generation, status = JobId(run.job_id), run.generation, run.status
        self._seen_up_to = max(self._seen_up_to, int(status.get("seen_seq", 0)))
        if run.unheard:  # adopted: what it had told is told, unless the engine has asked for it since
            run.unheard = False
            run.told_started = run.started and not run.asked_start
            run.told_seq = run.applied_seq - (0 < run.asked_seq <= run.applied_seq)
        if run.started and not run.told_started:
            run.told_started = True
            self._tell(ev.Started(job_id, generation, run.work_at_start, self._now_ms()))
        if run.applied_seq > run.told_seq:
            run.told_seq = run.applied_seq
            work = run.work(run.work_at_start)
            self._tell(ev.Resized(job_id, generation, run.applied_seq, work, self._now_ms()))
        says, saved = status.get("checkpoints") is True, status.get("saved")
        saved = saved if says and saved is not None and math.isfinite(saved) else None
        progress = (
            status.get("work"),
            status.get("rate"),
            status.get("loss"),
            says,
            saved,
            status.get("total"),
            status.get("elastic") is True,
        )
        if run.started and progress[0] is not None and progress != run.told_progress:
            run.told_progress = progress
            self._tell(ev.Progressed(job_id, generation, progress[0], self._now_ms(), *progress[1:]))

    def _pass_on(self, job_id: str, generation: int, outcome: EndRecord, told_started: bool) -> None:
        self._records[job_id] = (generation, outcome, time.monotonic() + REMEMBER_S)
        job = JobId(job_id)
        if outcome.kind == START_FAILED:
            launch = read_json(job_folder(self._home, job_id).run(generation).launch) or {}
            node = None if outcome.own_fault else int(launch.get("node", 0))
            self._tell(ev.StartFailed(job, generation, outcome.why, node))
            return
        if outcome.started and not told_started:
            self._tell(ev.Started(job, generation, outcome.work_at_start, self._now_ms()))
        if outcome.kind == EXITED:
            output = self._last_output(job_id, generation, outcome)
            self._tell(ev.Exited(job, generation, outcome.code, outcome.work_saved, outcome.why, output))
        else:
            self._tell(ev.Stopped(job, generation, outcome.work_saved))

    def _last_output(self, job_id: str, generation: int, outcome: EndRecord) -> str:
        """Of the member that is named as the cause of a failure."""
        named = _MEMBER.match(outcome.why)
        if outcome.code == 0 or named is None:
            return ""
        return excerpt(tail_of(job_folder(self._home, job_id).run(generation).log(named[0]), OUTPUT_BYTES))

    def _take_inventory(self) -> None:
        now_s = time.monotonic()
        self._records = {job: record for job, record in self._records.items() if now_s < record[2]}
        entries = [
            ev.Observed(
                JobId(run.job_id), run.generation, run.work(float("nan")), run.applied_seq, starting=not run.started
            )
            for run in self._runs.values()
        ]
        for job_id, (generation, outcome, _) in self._records.items():
            if job_id not in self._runs and outcome.kind != START_FAILED:
                code = outcome.code if outcome.kind == EXITED else None
                entry = ev.Observed(JobId(job_id), generation, outcome.work_saved, outcome.seq, code, code is None)
                entries.append(entry)
        nodes = frozenset(range(len(self._site.cluster.nodes)))
        self._tell(ev.Inventory(tuple(sorted(entries, key=lambda entry: entry.job_id)), self._seen_up_to, nodes))


def _spawn(folder: RunFolder) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a supervisor, detached, with a line to it."""
    ours, theirs = socket.socketpair()
    with theirs:
        log = os.open(folder.supervisor_notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", SUPERVISOR, str(folder.path), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=_supervisor_environment(),
            )
        except OSError:
            ours.close()
            raise
        finally:
            os.close(log)
    return process, ours


def _supervisor_environment() -> dict[str, str]:
    """As ours, without what belongs to the service; relative import paths would not survive a working directory."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRAINMASTER_")}
    if "PYTHONPATH" in env:
        env["PYTHONPATH"] = os.pathsep.join(os.path.abspath(part) for part in env["PYTHONPATH"].split(os.pathsep))
    return env
