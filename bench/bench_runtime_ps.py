"""The parameter server measured: pauses of resizes, throughput against loopback and DDP, and kill loops.

    python bench/bench_runtime_ps.py [pause|throughput|kills|all] [--megabytes 20] [--rounds 5] [--kills 50]

Everything that is compared is measured in one run. `pause`: per worker the longest time between the ends of two
steps while servers or workers are added or removed, less the median step; a restart is stop, checkpoint, start at
the new size. `throughput`: the same processes in turn exchange as many bytes over bare sockets, push and pull the
same bytes, train by the parameter server, and train by plain torch DDP. `kills`: SIGKILL of random members.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import selectors
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from support.fork_server import ForkServer
from trainmaster.gang.harness import Gang
from trainmaster.gang.protocol import SERVER, WORKER, Membership

HERE = Path(__file__).resolve()
PROGRAMS = HERE.parents[1] / "tests" / "runtime" / "programs"
PRELOAD = ("numpy", "trainmaster.runtime.ps.job")


# -- members ------------------------------------------------------------------------------------------


def member_pause(options: argparse.Namespace) -> None:
    from trainmaster.runtime import ps

    ps.serve_if_server()
    import numpy as np

    floats = int(options.megabytes * 250_000)
    job = ps.join({"w": np.zeros(floats, np.float32)}, ps.Sgd(lr=0.1, momentum=0.9))
    for _ in job.steps(1e9):
        job.gradients["w"][...] = 1e-3
        time.sleep(0.01)  # stands for the computation
        job.push_pull()
        print(time.monotonic(), job.work, flush=True)


def raw_server(address_file: Path) -> None:
    """Receives and sends as many bytes as the parameter server would, and does nothing else."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    address_file.write_text(str(listener.getsockname()[1]))

    def serve(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        size = int.from_bytes(connection.recv(8), "little")
        piece, answer = memoryview(bytearray(1 << 20)), memoryview(bytearray(size))
        while True:
            for start in range(0, size, 1 << 20):
                view = piece[: min(1 << 20, size - start)]
                while len(view):
                    count = connection.recv_into(view)
                    if not count:
                        return
                    view = view[count:]
                connection.sendall(answer[start : start + (1 << 20)])

    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


class RawExchange:
    """Sends and receives `size` bytes with every server at once, as the worker's exchange does."""

    def __init__(self, ports: list[int], size: int) -> None:
        self._size = size
        self._out, self._in = memoryview(bytearray(size)), [memoryview(bytearray(size)) for _ in ports]
        self._selector = selectors.DefaultSelector()
        self._sockets = [socket.create_connection(("127.0.0.1", port)) for port in ports]
        for number, connection in enumerate(self._sockets):
            connection.sendall(size.to_bytes(8, "little"))
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(connection, selectors.EVENT_READ, number)

    def step(self) -> None:
        sent, got = [0] * len(self._sockets), [0] * len(self._sockets)
        for number, connection in enumerate(self._sockets):
            self._selector.modify(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, number)
        while min(got) < self._size:
            for key, events in self._selector.select():
                number, connection = key.data, self._sockets[key.data]
                try:
                    if events & selectors.EVENT_WRITE:
                        sent[number] += connection.send(self._out[sent[number] :])
                        if sent[number] == self._size:
                            self._selector.modify(connection, selectors.EVENT_READ, number)
                    if events & selectors.EVENT_READ:
                        while got[number] < self._size:
                            got[number] += connection.recv_into(self._in[number][got[number] :])
                except BlockingIOError:
                    pass


def cpu_s(pids: list[int]) -> float:
    """CPU time of other processes so far."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")


def member_throughput(options: argparse.Namespace) -> None:
    from trainmaster.runtime import ps

    (Path(options.folder) / f"pid-{os.environ['TRAINMASTER_MEMBER']}").write_text(str(os.getpid()))
    ps.serve_if_server()
    import torch
    import torch.distributed as dist

    def network() -> Any:
        width = max(8, round((options.megabytes * 250_000 / 2) ** 0.5))
        return torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width))

    torch.manual_seed(0)
    torch.set_num_threads(1)
    ours, plain = network(), network()
    width = ours[0].in_features
    x = torch.randn(options.batch, width)
    lag = None if options.lag < 0 else options.lag
    job = ps.join(ours, ps.Sgd(lr=0.01), replica_lag=lag)
    ports = [int(path.read_text()) for path in sorted(Path(options.folder).glob("raw-*"))]
    raw = RawExchange(ports, 4 * len(job.flat_parameters) // len(ports))
    dist.init_process_group(
        "gloo", init_method=f"file://{options.folder}/rendezvous", rank=job.rank, world_size=job.workers
    )
    ddp = torch.nn.parallel.DistributedDataParallel(plain)
    sgd = torch.optim.SGD(plain.parameters(), lr=0.01)

    def train_ddp() -> None:
        sgd.zero_grad()
        ddp(x).square().mean().backward()
        sgd.step()

    def train_ps() -> None:
        ours(x).square().mean().backward()
        job.push_pull()

    def push_and_pull() -> None:
        job.push_pull(zero=False)

    kinds = {"raw": raw.step, "ps": push_and_pull, "ps_train": train_ps, "ddp_train": train_ddp}
    everybody = [int(path.read_text()) for path in Path(options.folder).glob("pid-*")]
    for number in range(options.rounds + 1):
        figures: dict[str, float] = {}
        for kind, step in kinds.items():
            dist.barrier()
            began_s, began_cpu_s = time.perf_counter(), cpu_s(everybody)
            for _ in range(options.steps):
                step()
            dist.barrier()
            figures[kind] = options.steps * job.workers / (time.perf_counter() - began_s)
            figures[f"{kind}_cpu_ms"] = 1000 * (cpu_s(everybody) - began_cpu_s) / options.steps / job.workers
        if job.rank == 0 and number:  # the first round warms up
            print(json.dumps(figures), flush=True)
    dist.barrier()
    os._exit(0)


# -- pauses -------------------------------------------------------------------------------------------


def command(mode: str, folder: Path, options: argparse.Namespace) -> list[str]:
    return [
        *("python", str(HERE), f"member-{mode}", "--megabytes", str(options.megabytes), "--folder", str(folder)),
        *("--steps", str(options.steps), "--batch", str(options.batch)),
        *("--rounds", str(options.rounds), "--lag", str(options.lag)),
    ]


def step_ends(gang: Gang, name: str) -> list[float]:
    lines = (line.split() for line in gang.log(name).splitlines())
    return [float(parts[0]) for parts in lines if len(parts) == 2 and parts[1].isdigit()]


def longest_gap_s(gang: Gang, from_s: float, to_s: float) -> float:
    """Over workers that were there before and after, less their median step."""
    gaps = []
    for name in gang.members:
        ends = step_ends(gang, name) if name.startswith(WORKER) else []
        before = [end for end in ends if end <= from_s]
        if len(before) < 5 or ends[-1] < to_s:
            continue
        during = [before[-1], *(end for end in ends if from_s < end <= to_s)]
        during.append(next(end for end in ends if end > to_s))
        steps = [b - a for a, b in itertools.pairwise(before)]
        gaps.append(max(b - a for a, b in itertools.pairwise(during)) - statistics.median(steps[-50:]))
    return max(gaps)


def hot_pauses(folder: Path, options: argparse.Namespace, forks: ForkServer) -> dict[str, list[float]]:
    program = command("pause", folder, options)
    found: dict[str, list[float]] = {"+server": [], "-server": [], "+worker": [], "-worker": []}
    with Gang(program, folder, server_command=program, fork_server=forks, patience_s=120) as gang:
        gang.grow(2, SERVER)
        gang.grow(2)
        gang.run_until(lambda: gang.roster.settled, 120)
        for _ in range(options.rounds):
            for kind in found:
                run_steps(gang, 8)
                role = kind[1:]
                version = current(gang).version
                if kind[0] == "+":
                    gang.grow(1, role)
                else:
                    gang.shrink([[n for n in gang.roster.members if n.startswith(role)][-1]])
                gang.run_until(lambda version=version: current(gang).version > version, 120)
                told_s = time.monotonic()
                gang.run_until(lambda: gang.roster.settled, 120)
                settled_s = time.monotonic()
                run_steps(gang, 4)
                found[kind].append(longest_gap_s(gang, told_s, settled_s))
        gang.stop()
        gang.run_to_end(60)
    return found


def restart_pauses(folder: Path, options: argparse.Namespace) -> list[float]:
    """Stop with a checkpoint, start with one server more: from the last step before to the first step after."""
    found, last_s = [], 0.0
    program = command("pause", folder, options)
    for number in range(min(3, options.rounds) + 1):
        with Gang(program, folder / str(number), server_command=program, generation=number + 1) as gang:
            (folder / "shared").mkdir(exist_ok=True)
            link = folder / str(number) / "checkpoints"
            if not link.exists():
                link.symlink_to(folder / "shared")
            gang.grow(2 + number % 2, SERVER)
            gang.grow(2)
            gang.run_until(lambda: gang.work_done > 0 and all(step_ends(gang, w) for w in workers(gang)), 240)
            if last_s:
                found.append(max(step_ends(gang, name)[0] for name in workers(gang)) - last_s)
            run_steps(gang, 5)
            gang.stop()
            gang.run_to_end(120)
            last_s = max(step_ends(gang, name)[-1] for name in gang.members if name.startswith(WORKER))
    return found


def workers(gang: Gang) -> list[str]:
    return [name for name in gang.alive if name.startswith(WORKER)]


def current(gang: Gang) -> Membership:
    assert gang.roster.current is not None
    return gang.roster.current


def run_for(gang: Gang, time_s: float) -> None:
    until_s = time.monotonic() + time_s
    gang.run_until(lambda: time.monotonic() >= until_s, time_s + 60)


def run_steps(gang: Gang, count: int) -> None:
    """Until every worker that belongs has made so many more steps."""
    before = {name: len(step_ends(gang, name)) for name in workers(gang) if name in gang.roster.members}
    gang.run_until(lambda: all(len(step_ends(gang, name)) >= n + count for name, n in before.items()), 240)


def bench_pause(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    forks = ForkServer(PRELOAD)
    hot = hot_pauses(folder / "hot", options, forks)
    forks.close()
    print(f"\nresize pause, {options.megabytes:g} MB of parameters, momentum, 2 workers, 2 servers:")
    median_s = {kind: statistics.median(values) for kind, values in hot.items()}
    for kind, value in median_s.items():
        print(f"  {kind:8} {value:7.3f} s   ({', '.join(f'{v:.3f}' for v in hot[kind])})", flush=True)
    restart = restart_pauses(folder / "restart", options)
    restart_s = statistics.median(restart)
    print(f"  restart  {restart_s:7.3f} s   ({', '.join(f'{v:.2f}' for v in restart)})")
    for kind, value in median_s.items():
        print(f"  restart / {kind}: {restart_s / max(value, 1e-4):.0f}x")
    return {"hot_s": hot, "restart_s": restart}


# -- throughput ---------------------------------------------------------------------------------------


def bench_throughput(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    size = int(options.megabytes * 1_000_000)
    found: dict[str, Any] = {}
    print(f"\nthroughput, {options.megabytes:g} MB of parameters, {options.servers} servers, lag {options.lag}:")
    print("  workers   raw GB/s    PS GB/s   PS/raw   raw/PS CPU   PS train/s   DDP train/s")
    for count in options.workers:
        place = folder / f"t{count}"
        place.mkdir(parents=True)
        raws = []
        for number in range(options.servers):
            pid = os.fork()
            if pid == 0:
                (place / f"pid-raw-{number}").write_text(str(os.getpid()))
                raw_server(place / f"raw-{number}")
            raws.append(pid)
        program = command("throughput", place, options)
        try:
            with Gang(program, place, server_command=program, patience_s=120) as gang:
                gang.grow(options.servers, SERVER)
                gang.grow(count)
                gang.run_until(lambda gang=gang: not workers(gang), 600)
                rows = [json.loads(line) for line in gang.log("worker-0").splitlines() if line.startswith("{")]
        finally:
            for pid in raws:
                os.kill(pid, 9)
                os.waitpid(pid, 0)
        figure = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        ratio = statistics.median(row["ps"] / row["raw"] for row in rows)
        # CPU time of all processes for the same bytes: the limit on a busy machine, whatever else runs there.
        cpu = statistics.median(row["raw_cpu_ms"] / max(1e-3, row["ps_cpu_ms"]) for row in rows)
        found[str(count)] = {**figure, "ps_over_raw": ratio, "cpu_ratio": cpu}
        per_step = 2 * size / 1e9
        raw_rate, ps_rate = figure["raw"] * per_step, figure["ps"] * per_step
        print(
            f"  {count:7}   {raw_rate:8.2f}   {ps_rate:8.2f}   {ratio:6.2f}   {cpu:10.2f}"
            f"   {figure['ps_train']:10.1f}   {figure['ddp_train']:11.1f}",
            flush=True,
        )
    return found


# -- kills --------------------------------------------------------------------------------------------


LEARN_S = 180.0


def bench_kills(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """`options.kills` servers and as many workers, at random moments; each is replaced."""
    rng = random.Random(options.seed)
    folder.mkdir(parents=True)
    forks = ForkServer(PRELOAD)
    terms = json.dumps({"replica_lag": 4, "save_every": 100})
    program = ["python", str(PROGRAMS / "regression_member.py"), str(folder), "100000000", "1", terms]
    victims = [WORKER] * options.kills + [SERVER] * options.kills
    rng.shuffle(victims)
    saved, least, waits = 0.0, 0.0, []
    with Gang(program, folder, server_command=program, fork_server=forks, patience_s=120) as gang:
        gang.grow(3, SERVER)
        gang.grow(3)
        gang.run_until(lambda: gang.roster.settled and gang.work_done > 0, 120)
        for role in victims:
            run_for(gang, rng.random() * 0.2)
            name = rng.choice([n for n in gang.alive if n.startswith(role) and n in gang.roster.members])
            gang.kill(name)
            gang.run_until(lambda name=name: name not in gang.alive, 30)
            gang.grow(1, role)
            began_s = time.monotonic()
            heard = len(gang.heard)
            gang.run_until(lambda: gang.roster.settled, 120)
            gang.run_until(lambda heard=heard: bool(progress(gang, heard)), 120)
            waits.append(time.monotonic() - began_s)
            work, least = progress(gang, heard)[-1]
            assert work >= saved, f"progress {work} fell below the checkpoint {saved}"
            saved = max(saved, least)
        first, last = losses(folder)
        by_s = time.monotonic() + LEARN_S
        while not last < 0.5 * first and time.monotonic() < by_s:  # a busy machine takes more than the kills took
            run_for(gang, 0.5)
            first, last = losses(folder)
        gang.stop()
        gang.run_to_end(60)
    forks.close()
    assert last < 0.5 * first, f"loss {first} -> {last}"
    print(f"\n{options.kills} servers and {options.kills} workers killed (seed {options.seed}): every one survived;")
    print(f"  from death to replaced and stepping: median {statistics.median(waits):.2f} s, worst {max(waits):.2f} s")
    print(f"  loss {first:.3g} -> {last:.3g}; last checkpoint at {saved:g} gradients")
    return {"recovery_s": waits, "first_loss": first, "last_loss": last, "saved": saved}


def progress(gang: Gang, since: int) -> list[tuple[float, float]]:
    """(work, saved) of the reports heard since."""
    reports = (message for _, _, message in gang.heard[since:] if type(message).__name__ == "Progress")
    return [(report.work_done, report.saved or 0.0) for report in reports]  # type: ignore[union-attr]


def losses(folder: Path) -> tuple[float, float]:
    """(at the beginning, at the end) as the workers saw it."""
    rows = [line.split() for path in folder.glob("*.losses") for line in path.read_text().splitlines()]
    points = sorted((int(row[0]), float(row[1])) for row in rows if len(row) == 2)
    ends = max(1, len(points) // 20)
    return statistics.median(p[1] for p in points[:ends]), statistics.median(p[1] for p in points[-ends:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", default="all")
    parser.add_argument("--megabytes", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="steps per measurement of throughput")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--workers", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2, 4])
    parser.add_argument("--lag", type=int, default=-1, help="replica lag in the throughput runs; -1: no backups")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", default="")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    if options.what == "member-pause":
        member_pause(options)
        return
    if options.what == "member-throughput":
        member_throughput(options)
        return
    parts = {"throughput": bench_throughput, "pause": bench_pause, "kills": bench_kills}
    if options.what not in (*parts, "all"):
        sys.exit(f"what is {options.what!r}; expected one of {', '.join(parts)}, all")
    with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as folder:
        found = {
            name: part(options, Path(folder) / name) for name, part in parts.items() if options.what in (name, "all")
        }
    print(f"\nload average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
