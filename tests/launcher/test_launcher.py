"""The launcher as a real process against a real hub: leases, signals, exit codes, second starts, failover."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest

from trainmaster.gang.protocol import EXIT_STOPPED
from trainmaster.launcher.bundle import launcher_bytes

from .conftest import LEASE_S, Bench

FOREVER = "echo $$ > $OUT/pid; exec sleep 1000"


def _pid(bench: Bench, name: str = "pid") -> int:
    path = bench.folder / name
    return int(bench.until(lambda: path.exists() and path.read_text().strip()))


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def test_the_command_runs_and_its_exit_code_is_told(bench: Bench) -> None:
    bench.admit(bench.seats(1))
    launcher = bench.shell("worker-0", "env > $OUT/env; exit 7")
    assert launcher.wait(60) == 7
    assert bench.hear("exited")[:3] == ("exited", "worker-0", 7)
    env = dict(line.split("=", 1) for line in (bench.folder / "env").read_text().splitlines() if "=" in line)
    wanted = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    assert {name: env[name] for name in wanted} == wanted and int(env["MASTER_PORT"]) > 1024
    assert env["TRAINMASTER_MEMBER"] == "worker-0", "what the pod has in one variable, the command has in many"
    assert "TRAINMASTER_IDENTITY" not in env


def test_killed_by_a_signal_is_told_as_such(bench: Bench) -> None:
    bench.admit(bench.seats(1))
    launcher = bench.shell("worker-0", "kill -9 $$")
    assert launcher.wait(60) == 128 + 9
    assert bench.hear("exited")[:3] == ("exited", "worker-0", -9)


def test_nobody_begins_before_the_whole_gang_is_there(bench: Bench) -> None:
    bench.admit(bench.seats(2, servers=1))
    script = "echo $RANK $WORLD_SIZE $MASTER_ADDR:$MASTER_PORT >> $OUT/began; sleep 0.2"
    launchers = [bench.shell(name, script) for name in ("worker-0", "server-0")]
    time.sleep(0.5)
    assert not (bench.folder / "began").exists() and not bench.said("begun")
    launchers.append(bench.shell("worker-1", script))
    first, server, second = [launcher.wait(60) for launcher in launchers]
    assert (first, second) == (0, 0)
    assert server in (0, EXIT_STOPPED), "a server is stopped when the last worker has finished"
    lines = sorted((bench.folder / "began").read_text().split("\n"))
    assert len({line.split()[-1] for line in lines if line}) == 1  # all meet at one place
    assert sorted(line.split()[0] for line in lines if line)[:2] == ["0", "1"]
    assert bench.said("begun")


def test_without_a_service_the_command_is_never_started(bench: Bench) -> None:
    launcher = bench.shell("worker-0", "touch $OUT/began", TRAINMASTER_SERVICE="127.0.0.1:1")
    time.sleep(1.0)
    assert launcher.poll() is None and not (bench.folder / "began").exists()
    launcher.terminate()
    assert launcher.wait(60) == 78


@pytest.mark.parametrize("known", [True, False])
def test_who_does_not_belong_is_refused(bench: Bench, known: bool) -> None:
    if known:
        bench.admit(bench.seats(1))
    launcher = bench.shell("worker-9", "touch $OUT/began")
    assert launcher.wait(60) == 78
    assert not (bench.folder / "began").exists()


def test_a_wrong_token_gets_no_lease(bench: Bench) -> None:
    bench.admit(bench.seats(1))
    bench.shell("worker-0", "touch $OUT/began", TRAINMASTER_AGENT_TOKEN="guess")
    time.sleep(1.0)
    assert not (bench.folder / "began").exists()


def test_a_lease_that_is_not_renewed_ends_the_command_in_time(bench: Bench) -> None:
    """The hub stops answering without a word, as behind a cut cable."""
    bench.admit(bench.seats(1))
    launcher = bench.shell("worker-0", "trap '' TERM; echo $$ > $OUT/pid; while :; do sleep 0.05; done")
    pid = _pid(bench)
    time.sleep(LEASE_S)  # renewed at least twice
    assert _lives(pid)
    bench.now(lambda: setattr(bench.hub, "heard", lambda line, message: None))
    answered_s = time.monotonic()
    bench.until(lambda: not _lives(pid), "the end of the command")
    took_s = time.monotonic() - answered_s
    assert LEASE_S * 0.5 < took_s <= LEASE_S + 0.9
    assert launcher.wait(60) == 76
    assert bench.hear("lapsed") == ("lapsed", "worker-0")
    assert time.monotonic() - answered_s >= took_s, "it was given up before it had ended"


def test_sigterm_comes_before_the_lease_ends_so_that_the_command_can_save(bench: Bench) -> None:
    bench.admit(bench.seats(1))
    script = "trap 'echo saved > $OUT/saved; exit 0' TERM; echo $$ > $OUT/pid; while :; do sleep 0.02; done"
    launcher = bench.shell("worker-0", script)
    _pid(bench)
    bench.now(lambda: setattr(bench.hub, "heard", lambda line, message: None))
    assert launcher.wait(60) == 75, "it was asked: its 0 is no success"
    assert (bench.folder / "saved").exists()


def test_stop_is_sigterm_then_grace_then_sigkill(bench: Bench) -> None:
    bench.admit(bench.seats(2))
    polite = "trap 'exit 3' TERM; echo $$ > $OUT/pid; while :; do sleep 0.02; done"
    stubborn = "trap '' TERM; echo $$ > $OUT/pid2; while :; do sleep 0.02; done"
    launchers = [bench.shell("worker-0", polite), bench.shell("worker-1", stubborn)]
    assert _pid(bench) != _pid(bench, "pid2")
    began_s = time.monotonic()
    bench.stop("preempted", 3.0)
    assert launchers[0].wait(60) == 75
    assert "exit code 3" in bench.log("worker-0")
    assert time.monotonic() - began_s < 2.8
    assert launchers[1].wait(60) == 75
    assert "SIGKILL" in bench.log("worker-1")
    assert time.monotonic() - began_s >= 3.0
    assert bench.hear("exited", "worker-1")[2] == 75


def test_a_pod_that_is_deleted_gives_its_command_the_grace(bench: Bench) -> None:
    bench.admit(bench.seats(1))
    launcher = bench.shell("worker-0", "trap 'exit 5' TERM; echo $$ > $OUT/pid; while :; do sleep 0.02; done")
    _pid(bench)
    launcher.terminate()
    assert launcher.wait(60) == 75


def test_other_signals_are_passed_on(bench: Bench) -> None:
    bench.admit(bench.seats(1))
    launcher = bench.shell("worker-0", "trap 'exit 9' USR1; echo $$ > $OUT/pid; while :; do sleep 0.02; done")
    _pid(bench)
    launcher.send_signal(signal.SIGUSR1)
    assert launcher.wait(60) == 9


def test_nothing_is_left_behind(bench: Bench) -> None:
    """Neither what stays in its group, nor what leaves its session."""
    bench.admit(bench.seats(1))
    script = "sleep 1000 & echo $! > $OUT/pid; setsid sleep 1000 & echo $! > $OUT/pid2; sleep 0.3; exit 0"
    launcher = bench.shell("worker-0", script)
    pids = _pid(bench), _pid(bench, "pid2")
    assert launcher.wait(60) == 0
    assert not any(map(_lives, pids))


def test_a_killed_launcher_takes_its_command_along(bench: Bench) -> None:
    bench.admit(bench.seats(1))
    launcher = bench.shell("worker-0", FOREVER)
    pid = _pid(bench)
    launcher.kill()
    bench.until(lambda: not _lives(pid))
    assert bench.hear("lapsed") == ("lapsed", "worker-0")


def test_a_container_that_is_started_again_does_not_run_the_command_again(bench: Bench) -> None:
    bench.admit(bench.seats(1))
    script = "echo x >> $OUT/runs; echo $$ > $OUT/pid; exec sleep 1000"
    first = bench.shell("worker-0", script)
    _pid(bench)
    first.kill()
    assert bench.shell("worker-0", script).wait(60) == 78
    assert (bench.folder / "runs").read_text() == "x\n"
    shutil.rmtree(bench.folder / "pod-worker-0")  # even if its memory is lost, the service knows
    assert bench.shell("worker-0", script).wait(60) == 78
    assert (bench.folder / "runs").read_text() == "x\n"


def test_a_command_that_cannot_start_is_its_own_fault(bench: Bench) -> None:
    bench.admit(bench.seats(1))
    assert bench.launch("worker-0", ["/no/such/program"]).wait(60) == 127
    assert "not found" in bench.hear("refused", "worker-0")[2]


def test_a_new_leader_is_found_and_the_command_goes_on(bench: Bench) -> None:
    seats = bench.seats(2)
    bench.admit(seats)
    launchers = [
        bench.shell(s.member, f"echo x >> $OUT/runs; echo $$ > $OUT/{s.member}; exec sleep 1000") for s in seats
    ]
    pids = [_pid(bench, seat.member) for seat in seats]
    bench.take_over(seats, pause_s=LEASE_S * 0.4)
    bench.until(lambda: bench.now(lambda: all(bench.hub.attached(bench.key, seat.member) for seat in seats)))
    time.sleep(LEASE_S * 1.5)
    assert all(map(_lives, pids)) and not bench.said("lapsed")
    assert (bench.folder / "runs").read_text() == "x\nx\n"
    bench.stop("done", 1.0)
    assert [launcher.wait(60) for launcher in launchers] == [75, 75]


def test_a_new_leader_at_another_address_tells_the_launcher(bench: Bench) -> None:
    """No name resolves to it, and the old address is dead."""
    seats = bench.seats(1)
    bench.admit(seats)
    bench.shell("worker-0", FOREVER, TRAINMASTER_NOTICE_PORT=str(bench.notice_port))
    pid = _pid(bench)
    bench.take_over(seats, elsewhere=True)
    bench.until(lambda: bench.now(lambda: bench.hub.attached(bench.key, "worker-0")))
    assert bench.now(lambda: bench.hub.has_spoken(bench.key, "worker-0"))
    time.sleep(LEASE_S * 1.5)
    assert _lives(pid) and not bench.said("lapsed")


def test_a_notice_without_the_token_changes_nothing(bench: Bench) -> None:
    bench.admit(bench.seats(1))
    bench.shell("worker-0", FOREVER, TRAINMASTER_NOTICE_PORT=str(bench.notice_port))
    assert _pid(bench)
    hostile = (b"[" * 2_000, b'{"token":"\\ud800","address":"127.0.0.1:1"}', b'{"token":' + b"9" * 1_500 + b"}")
    for body in (b'{"token":"guess","address":"127.0.0.1:1"}', b"nonsense", b'{"token":1}', b"[]", *hostile):
        with socket.create_connection(("127.0.0.1", bench.notice_port)) as caller:
            caller.sendall(b"POST /v1/leader HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            assert b"403" in caller.recv(100)
    assert bench.now(lambda: bench.hub.attached(bench.key, "worker-0"))


def test_a_new_leader_that_does_not_know_it_ends_it(bench: Bench) -> None:
    bench.admit(bench.seats(1))
    launcher = bench.shell("worker-0", FOREVER)
    pid = _pid(bench)
    bench.take_over([], adopt=False)
    assert launcher.wait(60) == 76
    assert not _lives(pid)


def test_an_adopted_launcher_that_never_comes_back_lapses(bench: Bench) -> None:
    bench.take_over(bench.seats(1))
    began_s = time.monotonic()
    assert bench.hear("lapsed") == ("lapsed", "worker-0")
    assert time.monotonic() - began_s >= LEASE_S
    silent = not bench.now(lambda: bench.hub.has_spoken(bench.key, "worker-0"))
    assert silent, "it may have ended while nobody led, for which its node is not to blame"


def test_a_leader_without_authority_renews_nothing(bench: Bench) -> None:
    bench.admit(bench.seats(1))
    launcher = bench.shell("worker-0", FOREVER)
    _pid(bench)
    bench.now(lambda: bench.hub.authority_until(time.monotonic()))
    assert launcher.wait(60) == 75  # by the SIGTERM before the lease's end


def test_a_fenced_member_is_ended_and_not_renewed(bench: Bench) -> None:
    bench.admit(bench.seats(2))
    launchers = [bench.shell(f"worker-{n}", FOREVER) for n in range(2)]
    assert _pid(bench) and bench.hear("begun")
    bench.now(lambda: bench.hub.fence(bench.key, ["worker-1"]))
    assert launchers[1].wait(60) == 76
    assert launchers[0].wait(60) == 75, "a plain gang stands and falls together: its attempt ends it, under its lease"
    assert bench.hear("exited", "worker-1")[2] == 76  # its last word is heard


def test_a_fenced_member_that_says_no_more_lapses(bench: Bench) -> None:
    bench.admit(bench.seats(1))
    launcher = bench.shell("worker-0", FOREVER)
    assert _pid(bench) and bench.hear("begun")
    launcher.kill()
    bench.now(lambda: bench.hub.fence(bench.key))
    assert bench.hear("lapsed") == ("lapsed", "worker-0")


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.13"])
def test_it_runs_on_other_pythons(bench: Bench, version: str) -> None:
    python = next(iter(sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))), None)
    if python is None:
        pytest.skip(f"no Python {version} here")
    bench.admit(bench.seats(1))
    launcher = bench.launch("worker-0", ["/bin/sh", "-c", "exit 4"], python=str(python))
    assert launcher.wait(60) == 4


def test_the_bundle_is_the_same_every_time() -> None:
    first = launcher_bytes()
    launcher_bytes.cache_clear()
    assert launcher_bytes() == first and len(first) < 100_000


def test_bad_settings_are_one_message(bench: Bench) -> None:
    assert bench.shell("worker-0", "true", TRAINMASTER_SERVICE="nonsense").wait(60) == 78
    assert "invalid address 'nonsense' of the service: expected HOST:PORT" in bench.log("worker-0")
    assert os.linesep.join(bench.log("worker-0").splitlines()).count("Traceback") == 0
