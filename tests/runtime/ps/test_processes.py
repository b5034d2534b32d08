"""Real processes: workers and servers come, go and die while they count; the sums must come out exactly."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fork_server import ForkServer
from trainmaster.gang.harness import Gang
from trainmaster.gang.protocol import EXIT_STOPPED, SERVER, WORKER
from trainmaster.runtime.checkpoint import Checkpoints, Folder

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
FLOATS = 60_000  # 15 blocks of 16 KiB
MANY = 1_000_000

Start = Callable[..., Gang]


@pytest.fixture
def start(tmp_path: Path, ps_fork_server: ForkServer) -> Iterator[Start]:
    gangs: list[Gang] = []

    def begin(workers: int, servers: int, steps: int, step_s: float = 0.0, generation: int = 1, **options: Any) -> Gang:
        program = str(PROGRAMS / "counting_member.py")
        command = ["python", program, str(tmp_path), str(FLOATS), str(steps), json.dumps(options), str(step_s)]
        gang = Gang(
            command, tmp_path, server_command=command, fork_server=ps_fork_server, generation=generation, patience_s=60
        )
        gangs.append(gang)
        gang.grow(servers, SERVER)
        gang.grow(workers)
        return gang

    yield begin
    for gang in gangs:
        gang.close()


def finish(gang: Gang) -> None:
    """Some more steps, then stop: the servers save when the workers have gone."""
    reach(gang, gang.work_done + 10)
    gang.stop()
    gang.run_to_end(60)


def names(gang: Gang, role: str) -> list[str]:
    return [name for name in gang.alive if name.startswith(role)]


def run_until(gang: Gang, until: Callable[[], bool]) -> None:
    """When it does not come, the failure says what every member was waiting for."""
    try:
        gang.run_until(until, 240)
    except TimeoutError:
        for name in gang.alive:
            gang.kill(name, signal.SIGUSR1)
        time.sleep(2.0)
        raise TimeoutError(f"work {gang.work_done}, {gang.roster.current}\n{gang.story()}") from None


def reach(gang: Gang, work: float) -> None:
    run_until(gang, lambda: gang.work_done >= work)


def settle(gang: Gang) -> None:
    run_until(gang, lambda: gang.roster.settled)


def acked(folder: Path) -> int:
    return sum(int(path.read_text() or 0) for path in folder.glob("*.acked"))


def final_blocks(folder: Path) -> list[tuple[float, float, int]]:
    loaded = Checkpoints(Folder(folder / "checkpoints" / "ps")).load()
    assert loaded is not None
    return [(float(b["params"].min()), float(b["params"].max()), b["work"]) for b in loaded.state["blocks"]]


@pytest.mark.parametrize("options", [{"replica_lag": 0}, {"replica_lag": None}, {"staleness": 2}], ids=str)
def test_sums_are_exact_across_resizes_of_workers_and_servers(
    start: Start, tmp_path: Path, options: dict[str, Any]
) -> None:
    gang = start(2, 2, MANY, 0.002, **options)
    for number, change in enumerate(("+s", "+w", "-s", "-w", "-s", "+s")):
        reach(gang, 20 + 40 * number)
        role = SERVER if change[1] == "s" else WORKER
        if change[0] == "+":
            gang.grow(1, role)
        else:
            gang.shrink([names(gang, role)[0]])  # the senior: the leader leaves too
        settle(gang)
    finish(gang)
    total = acked(tmp_path)
    assert total >= 220
    assert set(final_blocks(tmp_path)) == {(float(total), float(total), total)}
    assert set(gang.codes.values()) == {0, EXIT_STOPPED}


def test_every_server_can_be_replaced_at_once(start: Start, tmp_path: Path) -> None:
    gang = start(2, 1, MANY, 0.002, replica_lag=0)
    reach(gang, 30)
    gang.grow(1, SERVER)
    gang.shrink(["server-0"])
    settle(gang)
    gang.run_until(lambda: gang.members["server-0"].code is not None, 30)
    assert gang.members["server-0"].code == 0
    finish(gang)
    total = acked(tmp_path)
    assert set(final_blocks(tmp_path)) == {(float(total), float(total), total)}


def test_a_killed_worker_costs_at_most_its_gradient_in_flight(start: Start, tmp_path: Path) -> None:
    gang = start(3, 2, MANY, 0.002, replica_lag=0)
    for kill in (60, 120):
        reach(gang, kill)
        gang.kill(names(gang, WORKER)[0])
        settle(gang)
    finish(gang)
    total = acked(tmp_path)
    for low, high, _ in final_blocks(tmp_path):
        assert total <= low == high <= total + 2


@pytest.mark.parametrize("lag", [0, 8])
def test_a_killed_server_loses_no_more_than_the_lag(start: Start, tmp_path: Path, lag: int) -> None:
    gang = start(2, 3, MANY, 0.002, replica_lag=lag)
    kills = 0
    for work in (80, 200, 320):
        reach(gang, work)
        settle(gang)
        gang.kill(names(gang, SERVER)[work % 3 if kills else 0])
        kills += 1
        gang.run_until(lambda kills=kills: len(names(gang, SERVER)) == 2, 10)
        gang.grow(1, SERVER)
        settle(gang)
    finish(gang)
    total = acked(tmp_path)
    for low, high, _ in final_blocks(tmp_path):
        assert total - lag * kills <= low == high <= total


def test_synchronous_training_counts_every_gradient_once(start: Start, tmp_path: Path) -> None:
    gang = start(2, 2, MANY, 0.002, sync=True, replica_lag=0)
    reach(gang, 40)
    gang.grow(1)
    settle(gang)
    reach(gang, 80)
    gang.shrink([names(gang, SERVER)[0]])
    settle(gang)
    reach(gang, 120)
    gang.shrink([names(gang, WORKER)[0]])
    settle(gang)
    finish(gang)
    # An update is the mean of ones: a block's value is its number of updates, its work that of gradients.
    assert {work for _, _, work in final_blocks(tmp_path)} == {acked(tmp_path)}
    assert all(low == high < 0.8 * work for low, high, work in final_blocks(tmp_path))


def test_a_stopped_job_goes_on_where_its_servers_saved(start: Start, tmp_path: Path) -> None:
    gang = start(2, 2, 100_000, 0.002)
    reach(gang, 60)
    gang.stop()
    gang.run_to_end(30)
    assert set(gang.codes.values()) == {EXIT_STOPPED}
    total = acked(tmp_path)
    assert set(final_blocks(tmp_path)) == {(float(total), float(total), total)}
    again = start(1, 3, total + 50, 0.0, generation=2)
    again.run_until(lambda: not names(again, WORKER), 60)
    assert again.codes["worker-0"] == 0
    again.stop()
    again.run_to_end(30)
    assert set(final_blocks(tmp_path)) == {(total + 50.0, total + 50.0, total + 50)}


def test_when_all_servers_die_training_goes_on_from_the_checkpoint(start: Start, tmp_path: Path) -> None:
    gang = start(2, 2, MANY, 0.002, save_every=50)
    gang.run_until(lambda: any(((m.progress and m.progress.saved) or 0) >= 100 for m in gang.members.values()), 60)
    saved = max(m.progress.saved or 0 for m in gang.members.values() if m.progress)
    for name in names(gang, SERVER):
        gang.kill(name)
    gang.run_until(lambda: not names(gang, SERVER), 10)
    gang.grow(2, SERVER)
    settle(gang)
    finish(gang)
    blocks = final_blocks(tmp_path)
    assert all(low == high == work > saved for low, high, work in blocks)


def test_a_worker_with_another_model_is_told_so(start: Start, tmp_path: Path) -> None:
    gang = start(1, 1, 100_000, 0.005)
    reach(gang, 10)
    gang.command = [*gang.command[:3], str(FLOATS + 1), *gang.command[4:]]
    gang.grow(1)
    name = "worker-1"
    gang.run_until(lambda: gang.codes.get(name) is not None, 30)
    assert gang.members[name].code == 1
    assert f"another model ({FLOATS + 1} numbers instead of {FLOATS})" in gang.log(name)
    work = gang.work_done
    reach(gang, work + 10)
