"""The session: with and without an agent; stops, restarts, leases, and use in the wrong order."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainmaster.gang import protocol as wire
from trainmaster.gang.harness import Gang
from trainmaster.model.errors import InputError
from trainmaster.runtime import Session, session
from trainmaster.runtime.errors import AgentUnreachable, IncompatibleState, LeaseOver, MisuseError
from trainmaster.runtime.link import AgentLink
from trainmaster.runtime.process_env import ProcessEnv

SOURCE = Path(__file__).resolve().parents[2] / "src"
PROGRAM = str(Path(__file__).parent / "programs" / "session_member.py")


def _env() -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRAINMASTER_")}
    return env | {"PYTHONPATH": str(SOURCE)}


def test_by_hand_it_saves_on_sigterm_and_goes_on_where_it_was(tmp_path: Path) -> None:
    command = [sys.executable, PROGRAM, "40", "0.02"]
    first = subprocess.Popen(command, cwd=tmp_path, env=_env(), stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    while first.stdout.readline() != "step 7\n":
        pass
    first.send_signal(signal.SIGTERM)
    rest = first.stdout.read()
    first.stdout.close()
    assert first.wait(10) == wire.EXIT_STOPPED
    last = int(rest.split()[-1]) if rest else 7
    second = subprocess.run(command, cwd=tmp_path, env=_env(), capture_output=True, text=True)
    assert second.stdout.splitlines()[0] == f"step {last + 1}"
    assert second.stdout.splitlines()[-1] == f"done {sum(range(40))}"


def test_two_scripts_in_one_folder_keep_their_checkpoints_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        script = tmp_path / f"{name}.py"
        script.write_text(Path(PROGRAM).read_text())
        done = subprocess.run(
            [sys.executable, str(script), "5", "0"], cwd=tmp_path, env=_env(), capture_output=True, text=True
        )
        assert done.stdout.splitlines()[0] == "step 0", done.stderr
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["one", "two"]


def test_under_an_agent_it_reports_and_stops(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / ".partial-1-step").write_bytes(b"left by a dead writer")
    with Gang(["python", PROGRAM, "1000", "0.01"], tmp_path) as gang:
        gang.grow(1)
        gang.run_until(lambda: gang.work_done >= 10, 30)
        assert gang.roster.settled and not gang.roster.elastic  # joined, but is resized by a restart
        gang.stop("preempted")
        gang.run_to_end(10)
        progress = gang.members["worker-0"].progress
        assert gang.codes == {"worker-0": wire.EXIT_STOPPED}
        assert progress is not None and progress.saved == progress.work_done
        assert progress.loss == pytest.approx(1.0 / progress.work_done)
        assert not list((tmp_path / "checkpoints").glob(".partial*"))
        assert progress.rate is not None and 10 < progress.rate < 110


def test_an_agent_that_hangs_up_is_dialled_again(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "a.sock"))
    listener.listen()
    hello = wire.Hello("t", "worker-0", 1, True)
    ended: list[str] = []
    link = AgentLink(f"unix:{tmp_path / 'a.sock'}", hello, on_lease_over=ended.append)
    link._thread.start()
    peer = wire.Peer("worker-0", wire.WORKER, 0)
    for version in (1, 2):
        connection, _ = listener.accept()
        buffer = wire.LineBuffer()
        assert buffer.feed(connection.recv(4096))[0] == hello
        membership = wire.Membership(version, (peer,), "127.0.0.1", 1)
        connection.sendall(wire.encode(wire.Welcome(30.0, membership)))
        assert link.wait_for_membership(version - 1, 5.0) == membership
        if version == 1:
            link.joined(1)
            assert _hear(connection, buffer, wire.Joined) == wire.Joined(1)
            connection.close()
    assert _hear(connection, buffer, wire.Joined) == wire.Joined(1)  # told again: it may have been missed
    assert 29.0 < link.lease_left_s <= 30.0 and not ended
    connection.sendall(wire.encode(wire.StopNotice("quota", 5.0)))
    assert link.wait(lambda: link.stop_notice is not None, 5.0)
    link.close()
    connection.close()
    listener.close()


def _hear(connection: socket.socket, buffer: wire.LineBuffer, kind: type) -> wire.Message:
    connection.settimeout(5.0)
    while True:
        for message in buffer.feed(connection.recv(4096)):
            if isinstance(message, kind):
                return message  # type: ignore[return-value]


def test_the_lease_counts_from_when_the_renewal_was_sent(tmp_path: Path) -> None:
    """The agent answers late; the member's lease must have ended before the other side's rule says so."""
    listener = socket.create_server(("127.0.0.1", 0))
    over: list[float] = []
    hello = wire.Hello("t", "worker-0", 1, True)
    address = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
    link = AgentLink(address, hello, on_lease_over=lambda _: over.append(time.monotonic()))
    link._thread.start()
    connection, _ = listener.accept()
    buffer = wire.LineBuffer()
    buffer.feed(connection.recv(4096))
    connection.sendall(wire.encode(wire.Welcome(1.0)))
    renew = _hear(connection, buffer, wire.Renew)
    assert isinstance(renew, wire.Renew)
    sent_s = time.monotonic()
    time.sleep(0.4)
    connection.sendall(wire.encode(wire.Renewed(renew.number)))
    connection.sendall(wire.encode(wire.Renewed(9999)))  # an answer to nothing extends nothing
    answered_s = time.monotonic()
    while not over:
        time.sleep(0.01)
    assert sent_s + 0.9 < over[0] < answered_s + 1.0
    link.close(0.0)
    connection.close()
    listener.close()


def test_no_agent_where_one_was_promised(tmp_path: Path) -> None:
    link = AgentLink(f"unix:{tmp_path / 'nobody.sock'}", wire.Hello("t", "worker-0", 1, True))
    with pytest.raises(AgentUnreachable, match="Unset it to run unmanaged"):
        link.open(0.5)
    link.close(0.0)


def test_an_agent_with_a_long_path_is_reached(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 60) / ("e" * 60)
    folder.mkdir(parents=True)
    here = os.getcwd()
    os.chdir(folder)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("a.sock")
    listener.listen()
    os.chdir(here)
    link = AgentLink(f"unix:{folder / 'a.sock'}", wire.Hello("t", "worker-0", 1, True))
    link._thread.start()
    connection, _ = listener.accept()
    connection.sendall(wire.encode(wire.Welcome(30.0)))
    assert link.wait(lambda: link.lease_left_s > 0, 5.0)
    link.close()
    connection.close()
    listener.close()


def test_bad_use_is_named(tmp_path: Path) -> None:
    closed = Session(ProcessEnv(), location=tmp_path)
    with pytest.raises(MisuseError, match="not open"):
        closed.save({})
    with pytest.raises(MisuseError, match="not open"):
        next(closed.steps(3))
    with session(place=ProcessEnv(), location=tmp_path) as opened, pytest.raises(MisuseError, match="needs a total"):
        next(opened.steps())
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        Session(ProcessEnv(), location=tmp_path / "file")


def test_without_a_lease_nothing_is_saved(tmp_path: Path) -> None:
    with Session(ProcessEnv(), location=tmp_path) as opened:
        opened.save({"good": 1})
        opened.link = AgentLink("unix:/nowhere", wire.Hello("t", "worker-0", 1, elastic=False))  # never renewed
        with pytest.raises(LeaseOver):
            opened.save({"bad": 1})
        with pytest.raises(LeaseOver):
            next(opened.steps(3))
        assert opened.checkpoints.steps() == [0]


def test_a_slowed_step_takes_as_many_times_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept_s: list[float] = []
    monkeypatch.setattr(time, "sleep", slept_s.append)  # a busy machine stretches real sleeps, and real steps too
    computed_s = 0.03
    with Session(ProcessEnv(emulated_slowdown=4.0), location=tmp_path) as opened:
        began_s = time.process_time()
        for _ in opened.steps(5):
            until_s = time.process_time() + computed_s
            while time.process_time() < until_s:  # only what is computed counts, not what is waited for
                pass
        spent_s = time.process_time() - began_s
    assert 3.0 * 5 * computed_s <= sum(slept_s) <= 3.0 * spent_s


def test_checkpoints_of_another_kind_are_refused(tmp_path: Path) -> None:
    with Session(ProcessEnv(), location=tmp_path) as opened:
        opened.checkpoints.save(3, ["not", "ours"])
        with pytest.raises(IncompatibleState):
            opened.restore()
        assert opened.checkpoints.steps() == [3]


def test_first_steps_and_another_gang_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr("trainmaster.runtime.training_session.time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    session = Session(ProcessEnv(checkpoint_dir=tmp_path))

    def steps(count: int, each_s: float) -> float | None:
        for _ in range(count):
            session._step_began_s = now_s[0]
            now_s[0] += each_s
            session.count_step(session.work_done + 1)
        return session.rate

    steps(4, 1.0)
    assert steps(10, 0.1) == pytest.approx(10.0), "the slow ones are forgotten"
    session.changed_size()
    assert session.rate is None
    assert steps(6, 0.05) == pytest.approx(20.0)
