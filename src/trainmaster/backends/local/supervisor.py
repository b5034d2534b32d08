"""The supervisor: one process per attempt that starts its members, watches them, and outlives the service.

`python -m trainmaster.backends.local.supervisor FOLDER [FD]`: FOLDER holds launch.json, FD is a socket to whoever
started it. It holds the job's lock for as long as it lives, so no two attempts of a job ever run at once; its members
die with it. What is to be done is decided by `gang.attempt`; the attempt is over when ended.json is written.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from trainmaster.backends.local.control_socket import ControlServer
from trainmaster.backends.local.launch_record import LaunchRecord, record_from_json
from trainmaster.backends.local.run_folder import (
    EndRecord,
    JobFolder,
    JobLock,
    RunFolder,
    create_json,
    end_to_json,
    listen,
    read_json,
    replace_json,
    saved_work,
)
from trainmaster.backends.local.snapshots import Damaged, SnapshotStore, moved
from trainmaster.gang import linux, processes
from trainmaster.gang.actions import (
    NOBODYS,
    NODES,
    OWN,
    START_FAILED,
    STOPPED,
    Action,
    Attached,
    Exited,
    Outcome,
    Running,
    Seat,
    Send,
    Start,
    Terminate,
    command_exit,
    seat_from_json,
)
from trainmaster.gang.attempt import Attempt, Rules
from trainmaster.gang.endpoint import Endpoint, Gone
from trainmaster.gang.member_env import member_env
from trainmaster.gang.processes import CannotStart, ProcessGroup
from trainmaster.gang.progress import Work
from trainmaster.gang.protocol import WORKER, Begin, Renew, Renewed, StopNotice

LOCK_PATIENCE_S = 10.0
"""The supervisor before may take a moment to go after its last word."""
LOGS_EVERY_S = 1.0
DISK_PATIENCE_S = 5.0
MEMORY_EVERY_S = 1.0


class Supervisor:
    def __init__(self, record: LaunchRecord, folder: RunFolder, driver: socket.socket | None) -> None:
        self._record = record
        self._folder = folder
        self._job = JobFolder(folder.path.parent)
        self._endpoint = Endpoint(listen(folder.agent_socket), record.token)
        self._control = ControlServer(listen(folder.control_socket), driver, self._obey)
        self._work_at_start = self._saved = saved_work(self._job.work)
        rules = Rules(
            record.lease_s, record.grace_s, record.hello_wait_s, record.join_patience_s, max_deaths=record.max_attempts
        )
        work = Work(self._saved, self._saved)
        self.attempt = Attempt(rules, lambda _: processes.free_port(), work)
        self.attempt.set_target(record.slots, record.seq, launch=True)
        self._seen_seq = record.seq
        self._seats: dict[str, Seat] = {}
        self._groups: dict[str, ProcessGroup] = {}
        self._inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRAINMASTER_")}
        if record.account is not None:
            self._inherited = record.account.environment(self._inherited)
            record.account.give(folder.agent_socket)
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = socket.socketpair()
        for end in (self._wake_out, self._wake_in):
            end.setblocking(False)
        for source in (self._wake_out, self._endpoint, self._control):
            self._selector.register(source, selectors.EVENT_READ)
        self._logs_at_s = time.monotonic() + LOGS_EVERY_S
        self._memory_at_s = time.monotonic() if record.memory_mib else math.inf
        self._over_memory: dict[str, str] = {}
        """Why members were killed that used more than they may."""
        self._published: dict[str, Any] = {}
        self._publish_at_s = 0.0
        self._terminated = False

    def run(self) -> EndRecord:
        self._listen_to_signals()
        self._turn()
        while not self.attempt.over:
            self._selector.select(self._patience_s())
            with contextlib.suppress(BlockingIOError):
                self._wake_out.recv(4096)
            self._turn()
        processes.end_descendants()
        return self._end_record()

    def farewell(self, end: EndRecord) -> None:
        self._control.farewell(end_to_json(end))
        self._endpoint.close()
        for path in (self._folder.agent_socket, self._folder.control_socket):
            path.unlink(missing_ok=True)

    def _turn(self) -> None:
        """Everything that can be done now: exits before orders, so that a job that has finished is not stopped."""
        heard = True
        while heard and not self.attempt.over:
            if self._terminated:  # with its members, as a rule: what they do about it is not of themselves
                self._terminated = False
                self.attempt.stop("the machine is shutting down")
            self._reap()
            self._control.poll()
            self._hear()
            self._reap()
            while actions := self.attempt.advance(time.monotonic()):
                for action in actions:
                    self._carry_out(action)
            for group in self._groups.values():
                group.escalate(time.monotonic())
            heard = self._hear()  # what was said just now goes out; what came in must not wait for the next turn
        now_s = time.monotonic()
        self._keep_work()
        self._publish(now_s)
        if now_s >= self._logs_at_s:
            self._logs_at_s = now_s + LOGS_EVERY_S
            for name in self._groups:
                bound(self._folder.log(name), self._record.log_max_bytes)

        if now_s >= self._memory_at_s:
            self._memory_at_s = now_s + MEMORY_EVERY_S
            self._watch_memory()

    def _watch_memory(self) -> None:
        """Kill a worker that uses more than it asked for: else the machine runs out, and others die with it."""
        most = self._record.memory_mib
        for member, group in self._groups.items():
            if not group.alive or self._seats[member].role != WORKER or member in self._over_memory:
                continue
            used = linux.memory_mib(group.pid)
            if used > most:
                self._over_memory[member] = f"{member} used {used} MiB of memory, its limit is {most} MiB (--memory)"
                group.signal(signal.SIGKILL)

    # -- what the attempt wants --------------------------------------------------------------------------

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Start):
            self._seats[action.member] = action.seat
            self.attempt.on_member(action.member, Attached("127.0.0.1"))
        elif isinstance(action, Terminate):
            self._terminate(action)
        elif isinstance(action, Send):
            if isinstance(action.message, Begin):
                self._begin(action.member, action.message.environment)
            else:
                self._endpoint.send(action.member, action.message)

    def _begin(self, member: str, ranks: dict[str, str]) -> None:
        seat = self._seats[member]
        try:
            self._groups[member] = self._start(member, seat, ranks)
            self.attempt.on_member(member, Running())
        except CannotStart as error:
            self.attempt.on_member(member, Exited(126, str(error), OWN, ran=False))
        except OSError as error:
            why = f"this machine could not start the job: {error}"
            self.attempt.on_member(member, Exited(126, why, NODES, ran=False))

    def _start(self, member: str, seat: Seat, ranks: dict[str, str]) -> ProcessGroup:
        record = self._record
        env = {**self._inherited, **record.env, **seat.env}
        env.setdefault("PYTHONUNBUFFERED", "1")
        if "TRAINMASTER_EMULATED_SLOWDOWN" in record.env:
            env["TRAINMASTER_EMULATED_SHARING"] = str(self._folder.sharing)
        if seat.cpus:
            env.setdefault("OMP_NUM_THREADS", str(len(seat.cpus)))
        elif len(self.attempt.target) > 1:  # as torchrun does: several processes must not each take every core
            env.setdefault("OMP_NUM_THREADS", "1")
        env |= ranks | member_env(member, seat, record.token) | {"TRAINMASTER_AGENT": self._folder.agent_address}
        log = os.open(self._folder.log(member), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            command, become = record.command_of(seat.role), None if record.account is None else record.account.become
            workdir = self._work_folder(env) if record.snapshot else record.workdir
            return ProcessGroup(command, env, workdir=workdir, output=log, cpus=seat.cpus, become=become)
        except CannotStart as error:
            os.write(log, f"trainmaster: {error}\n".encode())
            raise
        finally:
            os.close(log)

    def _work_folder(self, env: dict[str, str]) -> str:
        """The folder of the job's snapshot; modules are found there too."""
        record = self._record
        try:
            work = SnapshotStore(self._job.path.parent.parent).unpack(record.snapshot, self._job, record.account)
        except Damaged as error:
            raise CannotStart(str(error)) from error
        if "PYTHONPATH" in env:
            env["PYTHONPATH"] = moved(env["PYTHONPATH"], record.workdir, work)
        return str(work)

    def _terminate(self, order: Terminate) -> None:
        group = self._groups.get(order.member)
        if group is None:
            self.attempt.on_member(order.member, Exited(1, order.why, NOBODYS, ran=False))
        else:
            told = self._endpoint.send(order.member, StopNotice(order.why, order.grace_s))
            group.terminate(order.grace_s, time.monotonic(), told)

    # -- what is seen ------------------------------------------------------------------------------------

    def _hear(self) -> bool:
        """Whether anything had come."""
        heard = False
        while inbound := self._endpoint.poll(0.0):
            heard = True
            for member, message in inbound:
                if isinstance(message, Renew):
                    if member in self._groups:
                        self._endpoint.send(member, Renewed(message.number))
                elif not isinstance(message, Gone):
                    self.attempt.on_message(member, message)
        return heard

    def _reap(self) -> None:
        while ended := processes.reap():
            self._hear()  # what it said before it ended
            pid, code = ended
            member = next((name for name, group in self._groups.items() if group.alive and group.pid == pid), None)
            if member is not None:  # else an orphan that was adopted
                self._exited(member, code)

    def _exited(self, member: str, code: int) -> None:
        self._groups[member].ended(code)
        bound(self._folder.log(member), self._record.log_max_bytes)
        while actions := self.attempt.advance(time.monotonic()):  # what it said decides what its code means
            for action in actions:
                self._carry_out(action)
        state = self.attempt.members[member]
        end = command_exit(member, code, speaks=state.elastic is not None)
        if member in self._over_memory and code < 0:
            end = Exited(code, self._over_memory[member], OWN)
        asked = {} if state.asked is None or state.complete else {"asked": True}
        with contextlib.suppress(OSError):  # a full disk must not take the gang down
            replace_json(self._folder.exit_record(member), {"code": code, "why": end.why, **asked})
        self.attempt.on_member(member, end)

    def _obey(self, order: dict[str, Any]) -> None:
        self._seen_seq = max(self._seen_seq, order["seq"])
        if order["order"] == "resize":
            self.attempt.set_target([seat_from_json(seat) for seat in order["slots"]], order["seq"])
        elif order["order"] == "stop":
            self.attempt.stop(order["why"], order.get("grace_s"))

    # -- what is told ------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """All that a driver must know, whether it was there from the beginning or not."""
        attempt, work = self.attempt, self.attempt.work
        return {
            "started": attempt.started,
            "stopping": attempt.outcome is not None,
            "seen_seq": self._seen_seq,
            "applied_seq": attempt.applied_seq,
            "work_at_start": self._work_at_start,
            "work": work.done if work.known else None,
            "saved": work.saved,
            "rate": work.rate,
            "loss": work.loss,
            "checkpoints": work.checkpoints,
            "elastic": attempt.elastic,
            "members": {name: group.pid for name, group in self._groups.items() if group.alive},
        }

    def _keep_work(self) -> None:
        if self.attempt.work.saved != self._saved:
            self._saved = self.attempt.work.saved
            with contextlib.suppress(OSError):  # a full disk: the checkpoint may be there, our note of it is not
                replace_json(self._job.work, {"saved": self._saved})

    def _publish(self, now_s: float) -> None:
        """Progress at its own pace, everything else at once."""
        status = self.status()
        steady = ("work", "saved", "rate", "loss")
        urgent = any(status[key] != self._published.get(key) for key in status if key not in steady)
        if urgent or now_s >= self._publish_at_s:
            self._published = status
            self._publish_at_s = now_s + self._record.progress_every_s
        self._control.publish(self._published)

    def _end_record(self) -> EndRecord:
        outcome, work = self.attempt.outcome, self.attempt.work
        assert outcome is not None
        if outcome.finished and self._terminated:  # its members had the same signal
            outcome = Outcome(STOPPED, why="the machine is shutting down")
        return EndRecord(
            outcome.kind,
            outcome.code,
            outcome.why,
            started=bool(self._groups),
            work_at_start=self._work_at_start,
            work_saved=max(work.done, work.saved) if outcome.finished else work.saved,
            seq=self._seen_seq,
            own_fault=outcome.node is None,
        )

    def _patience_s(self) -> float:
        own_s = min(self.attempt.next_due_s(), self._logs_at_s, self._memory_at_s)
        due_s = min([own_s, *(group.due_s for group in self._groups.values())])
        if self._published != self.status():
            due_s = min(due_s, self._publish_at_s)
        return max(0.0, due_s - time.monotonic())

    def _listen_to_signals(self) -> None:
        """By handlers, not by ignoring: what is ignored would be ignored by the members too."""
        signal.set_wakeup_fd(self._wake_in.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_terminated", True))


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


def _write_down(folder: RunFolder, end: EndRecord) -> None:
    """On a full disk try again for a while; after that the last word to the driver must do."""
    deadline_s = time.monotonic() + DISK_PATIENCE_S
    while True:
        try:
            create_json(folder.ended, end_to_json(end))
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
        why = "another attempt of the job still holds its lock"
        create_json(folder.ended, end_to_json(EndRecord(START_FAILED, why=why, own_fault=False)))
        return 1
    if folder.ended.exists() or lock.generation >= record.generation:
        create_json(folder.ended, end_to_json(EndRecord(STOPPED, why="superseded")))
        return 1
    lock.record(record.generation)
    linux.adopt_orphans()
    with contextlib.suppress(OSError):
        os.chdir("/")
    supervisor = Supervisor(record, folder, driver)
    try:
        end = supervisor.run()
    except BaseException:
        print(f"the attempt's story:\n{supervisor.attempt.story()}", file=sys.stderr)
        raise
    _write_down(folder, end)
    lock.release()
    supervisor.farewell(end)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
