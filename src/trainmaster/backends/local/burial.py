"""Finding out about an incarnation whose keeper does not answer: whether it lives, and how it ended.

The lock decides: a lock that can be taken proves that no keeper lives. Under it, processes that the keeper
may have left behind are killed, and the end is written down; a keeper that comes late finds it and goes away.
"""

from __future__ import annotations

from trainmaster.backends.local.job_lock import JobLock
from trainmaster.backends.local.layout import JobFolder, RunFolder, create_json, read_json
from trainmaster.backends.local.outcome import EXITED, STOPPED, Outcome, outcome_from_json, outcome_to_json
from trainmaster.backends.local.work_record import saved_work
from trainmaster.gang import linux
from trainmaster.gang.protocol import SERVER


def outcome_of(run: RunFolder) -> Outcome | None:
    """As it is written; None when it is not."""
    data = read_json(run.ended)
    return None if data is None else outcome_from_json(data)


def bury(job: JobFolder, run: RunFolder) -> Outcome | None:
    """How the incarnation ended, if it has; None when it may live: then ask again."""
    outcome = outcome_of(run)
    if outcome is not None:
        return outcome
    lock = JobLock.take(job.lock)
    if lock is None:
        return None
    try:
        outcome = outcome_of(run)
        if outcome is not None:
            return outcome
        if linux.kill_marked("TRAINMASTER_AGENT", run.agent_address):
            return None  # they are dying
        create_json(run.ended, outcome_to_json(_reconstruct(job, run)))
        return outcome_of(run)
    finally:
        lock.release()


def fence(job: JobFolder, generation: int, why: str) -> Outcome:
    """An incarnation that was told to stop before it was launched never begins."""
    run = job.run(generation)
    run.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    create_json(run.ended, outcome_to_json(Outcome(STOPPED, why=why, work_saved=saved_work(job.work))))
    outcome = outcome_of(run)
    assert outcome is not None
    return outcome


def _reconstruct(job: JobFolder, run: RunFolder) -> Outcome:
    """From what the keeper had written when it was killed: success only if every worker had succeeded."""
    launch = read_json(run.launch) or {}
    slots = launch.get("slots", [])
    workers = [f"worker-{i}" for i in range(sum(slot["role"] != SERVER for slot in slots))]
    exits = [read_json(run.exit_record(name)) for name in workers]
    logs = sorted(path.name for path in run.path.glob("worker-*.log"))
    saved = saved_work(job.work)
    seq = int(launch.get("seq", 0))
    began = bool(logs)
    whole = began and len(logs) == len(workers) and all(exits)
    if whole and all(record is not None and record["code"] == 0 for record in exits):
        return Outcome(EXITED, 0, started=True, work_at_start=saved, work_saved=saved, seq=seq)
    why = "its keeper was killed" if began else "its keeper never began"
    return Outcome(STOPPED, why=why, started=began, work_at_start=saved, work_saved=saved, seq=seq)
