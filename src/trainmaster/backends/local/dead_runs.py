"""Finding out about an attempt whose supervisor does not answer: whether it lives, and how it ended.

The lock decides: a lock that can be taken proves that no supervisor lives. Under it, processes that the supervisor
may have left behind are killed, and the end is written down; a supervisor that comes late finds it and goes away.
"""

from __future__ import annotations

from trainmaster.backends.local.run_folder import (
    EndRecord,
    JobFolder,
    JobLock,
    RunFolder,
    create_json,
    end_from_json,
    end_to_json,
    read_json,
    saved_work,
)
from trainmaster.gang import linux
from trainmaster.gang.actions import EXITED, STOPPED
from trainmaster.gang.protocol import SERVER


def end_of(run: RunFolder) -> EndRecord | None:
    """As it is written; None when it is not."""
    data = read_json(run.ended)
    return None if data is None else end_from_json(data)


KILLED = 128 + 9
"""Exit code of an attempt whose supervisor was killed, as shells count signals."""


def find_end(job: JobFolder, run: RunFolder, witnessed: bool = False) -> EndRecord | None:
    """How the attempt ended, if it has; None when it may live: then ask again. `witnessed`: the service ran on while
    the supervisor died, so neither a shutdown nor a loss of power ended it, and the attempt counts."""
    end = end_of(run)
    if end is not None:
        return end
    lock = JobLock.take(job.lock)
    if lock is None:
        return None
    try:
        end = end_of(run)
        if end is not None:
            return end
        if linux.kill_marked("TRAINMASTER_AGENT", run.agent_address):
            return None  # they are dying
        began = lock.generation >= run.generation  # a job may have removed its logs
        create_json(run.ended, end_to_json(_reconstruct(job, run, witnessed and began)))
        return end_of(run)
    finally:
        lock.release()


def fence(job: JobFolder, generation: int, why: str) -> EndRecord:
    """An attempt that was told to stop before it was launched never begins."""
    run = job.run(generation)
    run.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    create_json(run.ended, end_to_json(EndRecord(STOPPED, why=why, work_saved=saved_work(job.work))))
    end = end_of(run)
    assert end is not None
    return end


def _reconstruct(job: JobFolder, run: RunFolder, counts: bool) -> EndRecord:
    """From what the supervisor had written: success only if every worker had ended with 0, unasked."""
    launch = read_json(run.launch) or {}
    slots = launch.get("slots", [])
    workers = [f"worker-{i}" for i in range(sum(slot["role"] != SERVER for slot in slots))]
    exits = [read_json(run.exit_record(name)) for name in workers]
    logs = sorted(path.name for path in run.path.glob("worker-*.log"))
    saved = saved_work(job.work)
    seq = int(launch.get("seq", 0))
    began = bool(logs)
    whole = began and len(logs) == len(workers) and all(exits)
    if whole and all(record is not None and record["code"] == 0 and not record.get("asked") for record in exits):
        return EndRecord(EXITED, 0, started=True, work_at_start=saved, work_saved=saved, seq=seq)
    if counts:
        why = "its supervisor was killed"
        return EndRecord(EXITED, KILLED, why, started=True, work_at_start=saved, work_saved=saved, seq=seq)
    why = "its supervisor was killed" if began else "its supervisor never began"
    return EndRecord(STOPPED, why=why, started=began, work_at_start=saved, work_saved=saved, seq=seq)
