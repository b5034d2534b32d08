"""The keeper: one process per incarnation, which starts its members, watches them, and outlives the service.

`python -m trainmaster.backends.local.keeper FOLDER [FD]`: FOLDER holds launch.json, FD is a socket to whoever
started it. It holds the job's lock for as long as it lives, so no two incarnations of a job ever run at once;
its members die with it. It is over when ended.json is written.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from trainmaster.backends.local import member_process
from trainmaster.backends.local.control import ControlServer
from trainmaster.backends.local.incarnation import Incarnation
from trainmaster.backends.local.job_lock import JobLock
from trainmaster.backends.local.launch_record import LaunchRecord, record_from_json
from trainmaster.backends.local.layout import JobFolder, RunFolder, create_json, listen, read_json
from trainmaster.backends.local.outcome import START_FAILED, STOPPED, Outcome, outcome_to_json
from trainmaster.backends.local.slots import slot_from_json
from trainmaster.backends.local.work_record import WorkRecord
from trainmaster.gang import linux
from trainmaster.gang.endpoint import Endpoint

LOCK_PATIENCE_S = 10.0
"""The keeper before may take a moment to go after its last word."""
LOGS_EVERY_S = 5.0
REAP_PATIENCE_S = 10.0
DISK_PATIENCE_S = 5.0


class Keeper:
    def __init__(self, record: LaunchRecord, folder: RunFolder, driver: socket.socket | None) -> None:
        self._record = record
        self._folder = folder
        self._endpoint = Endpoint(listen(folder.agent_socket), record.token)
        self._control = ControlServer(listen(folder.control_socket), driver, self._obey)
        work = WorkRecord(JobFolder(folder.path.parent).work)
        self._incarnation = Incarnation(
            record, folder, self._endpoint, work, time.monotonic, member_process.own_environment()
        )
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = socket.socketpair()
        for end in (self._wake_out, self._wake_in):
            end.setblocking(False)
        for source in (self._wake_out, self._endpoint, self._control):
            self._selector.register(source, selectors.EVENT_READ)
        self._logs_at_s = time.monotonic() + LOGS_EVERY_S
        self._published: dict[str, Any] = {}
        self._publish_at_s = 0.0
        self._terminated = False

    def run(self) -> Outcome:
        self._listen_to_signals()
        self._incarnation.begin()
        self._turn()
        while not self._incarnation.over:
            self._selector.select(self._patience_s())
            with contextlib.suppress(BlockingIOError):
                self._wake_out.recv(4096)
            self._turn()
        end_descendants()
        return self._incarnation.last_word()

    def farewell(self, outcome: Outcome) -> None:
        self._control.farewell(outcome_to_json(outcome))
        self._endpoint.close()
        for path in (self._folder.agent_socket, self._folder.control_socket):
            path.unlink(missing_ok=True)

    def _turn(self) -> None:
        """Everything that can be done now: exits before orders, so that a job that is done is not stopped."""
        heard = True
        while heard and not self._incarnation.over:
            self._reap()
            self._control.poll()
            self._hear()
            if self._terminated:
                self._terminated = False
                self._incarnation.order_stop(0, "the machine goes down")
            self._reap()
            self._incarnation.tick()
            heard = self._hear()  # what was said just now goes out; what came in must not wait for the next turn
        now_s = time.monotonic()
        self._publish(now_s)
        if now_s >= self._logs_at_s:
            self._logs_at_s = now_s + LOGS_EVERY_S
            for member in self._incarnation.alive:
                bound(self._folder.log(member.name), self._record.log_max_bytes)

    def _hear(self) -> bool:
        """Whether anything had come."""
        heard = False
        while inbound := self._endpoint.poll(0.0):
            heard = True
            for name, message in inbound:
                self._incarnation.hear(name, message)
        return heard

    def _reap(self) -> None:
        while ended := member_process.reap():
            self._hear()  # what it said before it ended
            self._incarnation.exited(*ended)

    def _obey(self, order: dict[str, Any]) -> None:
        if order["order"] == "resize":
            self._incarnation.order_resize(order["seq"], [slot_from_json(slot) for slot in order["slots"]])
        elif order["order"] == "stop":
            self._incarnation.order_stop(order["seq"], order["why"], order.get("grace_s"))

    def _publish(self, now_s: float) -> None:
        """Progress at its own pace, everything else at once."""
        status = self._incarnation.status()
        steady = ("work", "saved", "rate", "loss")
        urgent = any(status[key] != self._published.get(key) for key in status if key not in steady)
        if urgent or now_s >= self._publish_at_s:
            self._published = status
            self._publish_at_s = now_s + self._record.progress_every_s
        self._control.publish(self._published)

    def _patience_s(self) -> float:
        due_s = min(self._incarnation.next_due_s(), self._logs_at_s)
        if self._published != self._incarnation.status():
            due_s = min(due_s, self._publish_at_s)
        return max(0.0, due_s - time.monotonic())

    def _listen_to_signals(self) -> None:
        """By handlers, not by ignoring: what is ignored would be ignored by the members too."""
        signal.set_wakeup_fd(self._wake_in.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_terminated", True))


def end_descendants() -> None:
    """Kill and reap whatever members have left behind, to the last generation."""
    deadline_s = time.monotonic() + REAP_PATIENCE_S
    while time.monotonic() < deadline_s:
        for pid in linux.children_of(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(0.005)


def bound(log: Path, max_bytes: int) -> None:
    """Keep the newest half of a log that has grown too long; offsets in it stay as they are if possible."""
    with contextlib.suppress(OSError):
        descriptor = os.open(log, os.O_WRONLY)
        try:
            stat = os.fstat(descriptor)
            if max_bytes and stat.st_blocks * 512 > max_bytes:
                head = (stat.st_size - max_bytes // 2) // 4096 * 4096
                if not linux.free_head(descriptor, head):
                    os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)


def _write_down(folder: RunFolder, outcome: Outcome) -> None:
    """On a full disk try again for a while; after that the last word to the driver must do."""
    deadline_s = time.monotonic() + DISK_PATIENCE_S
    while True:
        try:
            create_json(folder.ended, outcome_to_json(outcome))
            return
        except OSError as error:
            print(f"the end could not be written down: {error}", file=sys.stderr)
            if time.monotonic() >= deadline_s:
                return
            time.sleep(1.0)


def main(arguments: list[str]) -> int:
    folder = RunFolder(Path(arguments[0]))
    driver = socket.socket(fileno=int(arguments[1])) if len(arguments) > 1 else None
    record = record_from_json(read_json(folder.launch) or {})
    lock = JobLock.take(JobFolder(folder.path.parent).lock, LOCK_PATIENCE_S)
    if lock is None:
        why = "another incarnation of the job still holds its lock"
        create_json(folder.ended, outcome_to_json(Outcome(START_FAILED, why=why, own_fault=False)))
        return 1
    if folder.ended.exists() or lock.generation >= record.generation:
        create_json(folder.ended, outcome_to_json(Outcome(STOPPED, why="superseded")))
        return 1
    lock.record(record.generation)
    linux.adopt_orphans()
    with contextlib.suppress(OSError):
        os.chdir("/")
    keeper = Keeper(record, folder, driver)
    outcome = keeper.run()
    _write_down(folder, outcome)
    lock.release()
    keeper.farewell(outcome)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
