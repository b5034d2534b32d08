"""What launchers say (see `agent_hub.HubListener`), entered in the book and judged."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable

from trainmaster.backends.kubernetes.conclusions import Conclusions
from trainmaster.backends.kubernetes.facts import RunKey
from trainmaster.backends.kubernetes.pod_work import KIND_PATIENCE, PodWork
from trainmaster.backends.kubernetes.run import START_FAILED, Ending, Member, Run
from trainmaster.backends.kubernetes.run_book import RunBook
from trainmaster.backends.kubernetes.run_reports import RunReports
from trainmaster.gang.protocol import EXIT_NOT_RUN, Progress
from trainmaster.model import event as ev
from trainmaster.model.job import JobId

log = logging.getLogger(__name__)


class LauncherWords:
    def __init__(self, book: RunBook, reports: RunReports, conclusions: Conclusions, work: PodWork) -> None:
        self._book = book
        self._reports = reports
        self._judge = conclusions.judge
        self._work = work

    def begun(self, key: RunKey) -> None:
        """Every command of the gang runs."""
        run = self._book.runs.get(key)
        if run is None:
            return
        if not run.begun:
            run.begun, run.begun_s = True, time.monotonic()
            if run.facts.spec.elastic:
                wait_s = self._book.options.hello_wait_s
                self._book.loop.call_later(wait_s, self._judge, run)
                self._book.loop.call_later(KIND_PATIENCE * wait_s + 0.01, self._judge, run)
        self._judge(run)

    def here(self, key: RunKey, member: str, elastic: bool) -> None:
        run, found = self._find(key, member)
        if run is not None and found is not None:
            found.heard = True
            run.speaks = elastic if run.speaks is None else run.speaks and elastic
            self._judge(run)

    def settled(self, key: RunKey, version: int, members: Iterable[str]) -> None:  # noqa: ARG002
        run = self._book.runs.get(key)
        if run is not None:
            run.settled = frozenset(members)
            self._judge(run)

    def progress(self, key: RunKey, member: str, told: Progress) -> None:  # noqa: ARG002
        run = self._book.runs.get(key)
        if run is None or run.over:
            return
        if told.saved is not None:
            run.work_saved = told.saved if math.isnan(run.work_saved) else max(run.work_saved, told.saved)
        if math.isnan(run.work) or told.work_done >= run.work:
            run.work = told.work_done
            job_id, now_ms = JobId(key.job_id), self._reports.now_ms()
            self._reports.tell(ev.Progressed(job_id, key.generation, told.work_done, now_ms, told.rate, told.loss))

    def exited(self, key: RunKey, member: str, code: int, why: str = "") -> None:
        run, found = self._find(key, member)
        if run is not None and found is not None:
            run.said_ended(found, code, why, self._book.watch.is_ready(found.slot.node))
            if not found.alive:
                self._judge(run)

    def lapsed(self, key: RunKey, member: str) -> None:
        """No renewal for so long that it has certainly ended itself."""
        run, found = self._find(key, member)
        if run is None or found is None:
            return
        if found.end is None:
            run.certainly_over(found)
            if found.pod is not None and not found.gone:
                if self._book.launchers.has_spoken(key, member):
                    log.warning("%s went silent: nothing is started on %s for now", found.pod_name, found.slot.node)
                    self._book.watch.distrust(found.slot.node)
                self._work.delete_by_force(run, found)
        self._judge(run)

    def refused(self, key: RunKey, member: str, why: str) -> None:
        """Its command was not started, and will not be: that is an end, too."""
        run, found = self._find(key, member)
        if run is None:
            return
        unwanted = found is not None and (found.gone or found.leaving)
        if run.ending is None and not run.started and not unwanted:
            run.ending = Ending(START_FAILED, 1, f"{member}: {why}")
        if found is not None:
            run.said_ended(found, EXIT_NOT_RUN, why, self._book.watch.is_ready(found.slot.node))
        self._judge(run)

    def _find(self, key: RunKey, member: str) -> tuple[Run | None, Member | None]:
        run = self._book.runs.get(key)
        return run, None if run is None else run.members.get(member)
