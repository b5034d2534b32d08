"""The local backend's costs: start of a job, CPU of a start, memory and CPU of a supervisor that waits.

`python bench/bench_local_backend.py [--jobs 20] [--idle-s 20]`. Wall times depend on what else the machine does;
CPU times hardly.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from support.local_jobs import LocalJobs
from trainmaster.model import event as ev

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mib(pid: int, what: str) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--idle-s", type=float, default=20.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        jobs = LocalJobs(Path(folder))
        start_s, end_s = [], []
        children = os.times()
        for number in range(options.jobs):
            begun = time.monotonic()
            spec = jobs.run(f"quick-{number}", ["true"])
            jobs.expect(ev.Started, spec)
            start_s.append(time.monotonic() - begun)
            jobs.expect(ev.Exited, spec)
            end_s.append(time.monotonic() - begun)
        time.sleep(0.5)
        after = os.times()
        spent_s = after.children_user + after.children_system - children.children_user - children.children_system
        print(f"start (median of {options.jobs}): {statistics.median(start_s) * 1000:.0f} ms, "
              f"start to end of `true`: {statistics.median(end_s) * 1000:.0f} ms")  # fmt: skip
        print(f"CPU of keeper and job: {spent_s / options.jobs * 1000:.0f} ms each")
        spec = jobs.run("idle", ["sleep", "1000"])
        jobs.expect(ev.Started, spec)
        supervisor = jobs.supervisor_pid(spec)
        resident, share = memory_mib(supervisor, "Rss"), memory_mib(supervisor, "Pss")
        print(f"keeper: {resident:.1f} MiB resident, {share:.1f} MiB with shared pages divided among their users")
        before, own = cpu_s(supervisor), time.thread_time()
        process = time.process_time()
        time.sleep(options.idle_s)
        idle = (cpu_s(supervisor) - before) / options.idle_s
        backend = (time.process_time() - process - (time.thread_time() - own)) / options.idle_s
        print(f"idle for {options.idle_s:g} s: keeper {idle:.3%} of a core, backend thread {backend:.3%}")
        jobs.close()


if __name__ == "__main__":
    main()
