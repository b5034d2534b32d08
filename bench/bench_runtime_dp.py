"""Elastic data parallel: pauses of hot resizes against checkpoint-restart, throughput against plain DDP, overhead.

    python bench/bench_runtime_dp.py [pause|scaling|overhead] [--hidden 1024] [--rounds 5] [--json FILE]

Everything that is compared is measured in one run on one machine. `pause`: from the end of the last step
before a change of workers to the end of the first step after it, less the median step. `scaling`: the same
processes train by plain torch DDP and by the elastic runtime in alternating blocks of steps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

SAMPLES = 1 << 16


def model_of(hidden: int) -> Any:
    import torch

    return torch.nn.Sequential(
        torch.nn.Linear(256, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, hidden), torch.nn.ReLU(),
        torch.nn.Linear(hidden, 10),
    )  # fmt: skip


# -- members ------------------------------------------------------------------------------------------


def member_pause(options: argparse.Namespace) -> None:
    import torch

    from trainmaster import runtime

    torch.manual_seed(0)
    model = model_of(options.hidden)
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.randn(4096, 256), torch.randint(10, (4096,))
    with runtime.elastic(
        model, optimizer, samples=4096, global_batch=options.batch, epochs=10**6, save_every_s=None
    ) as training:
        known = 0
        for batch in training:
            loss = torch.nn.functional.cross_entropy(model(x[batch.indices]), y[batch.indices])
            training.step(loss)
            line: dict[str, Any] = {"t": time.monotonic(), "step": training.step_count, "workers": training.workers}
            if len(training.pauses) > known:
                line["pause"], known = vars(training.pauses[-1]), len(training.pauses)
            print(json.dumps(line), flush=True)


def member_scaling(options: argparse.Namespace) -> None:
    """Blocks of DDP and of the elastic runtime in turn, in the same processes."""
    import torch
    import torch.distributed as dist

    from trainmaster import runtime

    torch.manual_seed(0)
    ours, plain = model_of(options.hidden), model_of(options.hidden)
    adam = torch.optim.Adam(plain.parameters())
    x, y = torch.randn(SAMPLES // 16, 256), torch.randint(10, (SAMPLES // 16,))
    entropy = torch.nn.functional.cross_entropy
    local = options.batch
    with runtime.elastic(
        ours,
        torch.optim.Adam(ours.parameters()),
        samples=len(x),
        worker_batch=local,
        lr_rule="none",
        epochs=10**6,
        drop_last=True,
        save_every_s=None,
    ) as training:
        rank, world = training.rank, training.workers
        dist.init_process_group("gloo", init_method=f"file://{options.rendezvous}", rank=rank, world_size=world)
        ddp = torch.nn.parallel.DistributedDataParallel(plain)
        chance = torch.Generator().manual_seed(rank)
        batches = iter(training)
        batch = next(batches)
        for number in range(options.rounds + 1):
            took, spent = {}, {}
            for kind in ("ddp", "ours") if number % 2 else ("ours", "ddp"):
                dist.barrier()
                began_s, began_cpu_s = time.perf_counter(), time.process_time()
                for _ in range(options.block):
                    if kind == "ours":
                        training.step(entropy(ours(x[batch.indices]), y[batch.indices]))
                        batch = next(batches)
                    else:
                        indices = torch.randperm(len(x), generator=chance)[:local].numpy()
                        adam.zero_grad()
                        entropy(ddp(x[indices]), y[indices]).backward()
                        adam.step()
                spent[kind] = (time.process_time() - began_cpu_s) / options.block
                dist.barrier()
                took[kind] = time.perf_counter() - began_s
            if rank == 0 and number:  # the first round warms up
                rates = {kind: options.block * local * world / s for kind, s in took.items()}
                print(json.dumps({**rates, "cpu_s": spent}), flush=True)
        os._exit(0)  # every member is past the last barrier


def member_overhead(options: argparse.Namespace) -> None:
    """A plain loop, and the same loop under a lease with a report after every step, in turn."""
    import torch

    from trainmaster import runtime

    torch.manual_seed(0)
    model = model_of(options.hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(options.batch, 256), torch.randint(10, (options.batch,))

    def one_step() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss)

    with runtime.session() as session:
        done = 0
        for number in range(options.rounds + 1):
            took = {}
            for kind in ("plain", "session") if number % 2 else ("session", "plain"):
                began_s = time.process_time()  # of all threads, the link's too
                for _ in range(options.block):
                    if kind == "session":
                        session.begin_step()
                        session.report(loss=one_step())
                        done += 1
                        session.end_step(done)
                    else:
                        one_step()
                took[kind] = (time.process_time() - began_s) / options.block
            if number:
                print(json.dumps(took), flush=True)


# -- the measurements ---------------------------------------------------------------------------------


def gang_of(options: argparse.Namespace, kind: str, folder: Path, *more: str) -> Any:
    from trainmaster.gang.harness import Gang

    settings = [f"--{name}={getattr(options, name)}" for name in ("hidden", "batch", "rounds", "block")]
    return Gang(["python", str(Path(__file__).resolve()), f"member-{kind}", *settings, *more], folder)


def steps_of(gang: Any) -> list[dict[str, Any]]:
    lines = [json.loads(line) for name in gang.members for line in gang.log(name).splitlines() if line.startswith("{")]
    return sorted((line for line in lines if "t" in line), key=lambda line: (line["step"], line["t"]))


def ends(lines: list[dict[str, Any]]) -> dict[int, float]:
    """When the last worker had finished each step."""
    found: dict[int, float] = {}
    for line in lines:
        found[line["step"]] = max(line["t"], found.get(line["step"], 0.0))
    return found


def measure_pause(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    gaps: dict[str, list[float]] = {"hot +1": [], "hot -1": [], "restart +1": [], "restart -1": []}
    parts: dict[str, list[dict[str, float]]] = {"hot +1": [], "hot -1": []}
    generation, workers, steps_s = 1, 2, []
    gang = gang_of(options, "pause", folder)
    gang.grow(workers)
    for number in range(options.rounds):
        for change in (1, -1):
            key = f"{change:+d}"
            settle(gang, workers)
            before = {line["t"] for line in steps_of(gang) if "pause" in line}
            if change > 0:
                gang.grow(1)
            else:
                gang.shrink([gang.roster.members[-1]])
            workers += change
            settle(gang, workers)
            lines = steps_of(gang)
            finished = ends(lines)
            marks = [line for line in lines if "pause" in line and line["pause"]["hot"] and line["t"] not in before]
            at = min(line["step"] for line in marks)
            normal = statistics.median(
                later - earlier for (_, earlier), (_, later) in pairwise(sorted(finished.items()))
            )
            gaps[f"hot {key}"].append(max(finished[at] - finished[at - 1] - normal, 0.0))
            parts[f"hot {key}"] += [line["pause"] for line in marks if line["step"] == at]
            steps_s.append(normal)
        for change in (1, -1):  # the same changes by stop, save, start
            settle(gang, workers)
            gang.stop("resize")
            gang.run_to_end(120)
            last_s = max(line["t"] for line in steps_of(gang))
            gang.close()
            generation, workers = generation + 1, workers + change
            gang = gang_of(options, "pause", folder)
            gang.generation = generation
            gang.grow(workers)
            settle(gang, workers, 1)
            gaps[f"restart {change:+d}"].append(min(ends(steps_of(gang)).items())[1] - last_s - steps_s[-1])
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    gang.close()
    middle = {name: statistics.median(values) for name, values in gaps.items()}
    size = sum(parameter.numel() for parameter in model_of(options.hidden).parameters())
    return {
        "parameters": size,
        "step_s": statistics.median(steps_s),
        "pause_s": {name: {"median": middle[name], "all": values} for name, values in gaps.items()},
        "breakdown_s": {
            name: {
                part: statistics.median(entry[part] for entry in entries)
                for part in ("total_s", "build_s", "survey_s", "hand_over_s", "handed_bytes")
            }
            for name, entries in parts.items()
        },
        "restart_over_hot": {key: middle[f"restart {key}"] / max(middle[f"hot {key}"], 1e-6) for key in ("+1", "-1")},
    }


def settle(gang: Any, workers: int, steps: int = 15) -> None:
    """Until `steps` more steps are done by so many workers."""
    gang.run_until(lambda: gang.roster.settled and len(gang.roster.members) == workers, 300)
    target = gang.work_done + steps
    gang.run_until(lambda: gang.work_done >= target, 300)


def measure_scaling(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for workers in (1, 2, 4):
        place = folder / str(workers)
        with gang_of(options, "scaling", place, f"--rendezvous={place / 'rendezvous'}") as gang:
            gang.grow(workers)
            gang.run_to_end(900)
            lines = [json.loads(line) for line in gang.log("worker-0").splitlines() if line.startswith("{")]
            assert lines, gang.story()
        ratios = [line["ours"] / line["ddp"] for line in lines]
        result[str(workers)] = {
            "ddp_samples_per_s": statistics.median(line["ddp"] for line in lines),
            "ours_samples_per_s": statistics.median(line["ours"] for line in lines),
            "ours_over_ddp": {"median": statistics.median(ratios), "all": ratios},
            "cpu_s_per_step": {
                kind: statistics.median(line["cpu_s"][kind] for line in lines) for kind in ("ddp", "ours")
            },
        }
        print(f"{workers} workers: {result[str(workers)]}", file=sys.stderr)
    return result


def measure_overhead(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    with gang_of(options, "overhead", folder) as gang:
        gang.grow(1)
        gang.run_to_end(600)
        lines = [json.loads(line) for line in gang.log("worker-0").splitlines() if line.startswith("{")]
        assert lines, gang.story()
    ratios = [line["session"] / line["plain"] - 1.0 for line in lines]
    return {
        "plain_cpu_s_per_step": statistics.median(line["plain"] for line in lines),
        "session_cpu_s_per_step": statistics.median(line["session"] for line in lines),
        "overhead": {"median": statistics.median(ratios), "all": ratios},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = ("pause", "scaling", "overhead")
    parser.add_argument("what", choices=[*kinds, *(f"member-{kind}" for kind in kinds)])
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=64, help="global (pause), per worker (scaling, overhead)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--block", type=int, default=30, help="steps between two measurements")
    parser.add_argument("--rendezvous")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.what.startswith("member-"):
        globals()[f"member_{options.what.removeprefix('member-')}"](options)
        return
    with tempfile.TemporaryDirectory() as folder:
        result = {options.what: globals()[f"measure_{options.what}"](options, Path(folder))}
    text = json.dumps(result, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text)


if __name__ == "__main__":
    main()
