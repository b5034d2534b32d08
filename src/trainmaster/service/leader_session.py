"""One leadership: store, control plane, scheduler thread, forecasts, and the platform's part of it.

On one machine there is one session, as long as the process. On Kubernetes a session lasts from the election of this
replica until it loses the Lease.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from structlog.stdlib import BoundLogger

from trainmaster.engine.ports import Archive
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.estimate.speeds.learned import LearningEstimator
from trainmaster.forecast.forecast import Outlook
from trainmaster.forecast.process import ForecastProcess
from trainmaster.model.policy import Policy
from trainmaster.policies.registry import create
from trainmaster.service.control.clock import Clock, SystemClock
from trainmaster.service.control.control_plane import ControlPlane, Listeners
from trainmaster.service.control.forecasts import LiveForecasts
from trainmaster.service.control.scheduler_thread import Driver
from trainmaster.service.log_setup import log_entries
from trainmaster.service.options import ServiceOptions
from trainmaster.service.platform import Fatal, Platform

if TYPE_CHECKING:
    from trainmaster.service.online_learning import Learning


@dataclass(frozen=True)
class SessionParts:
    """What a session is made of besides the platform's. The fault simulation brings others, for virtual time."""

    clock: Callable[[], Clock] = SystemClock
    driver: Callable[[ControlPlane, Fatal], Driver] = Driver
    forecasts: Callable[..., ForecastProcess] = ForecastProcess
    policies: Callable[[str], Policy] = create


class LeaderSession:
    """`open` and `close` block, and are called from another thread than the event loop's; `halt` within the loop."""

    def __init__(
        self, options: ServiceOptions, platform: Platform, log: BoundLogger, fatal: Fatal, parts: SessionParts
    ) -> None:
        self._options = options
        self._platform = platform
        self._log = log
        self._fatal = fatal
        self._parts = parts
        self._part = platform.session()
        self._store: Archive | None = None
        self._learning: Learning | None = None
        self._closing = False
        self.driver: Driver | None = None
        """None: not open."""
        self.forecasts: ForecastProcess | None = None

    def open(self) -> None:
        """Take over the state and begin to decide. Raises when the state cannot be read; `close` all the same."""
        part, platform, option = self._part, self._platform, self._options.policy
        store = self._store = part.open_store()
        stored_state = store.load_active()
        live_forecasts = LiveForecasts(LearningEstimator(DeclaredSpeeds()), part.database)
        live_forecasts.forecaster = self.forecasts = self._parts.forecasts(
            partial(self._forecast_made, live_forecasts), partial(self._forecast_failed, live_forecasts)
        )
        plane = ControlPlane(
            part.cluster(stored_state),
            store,
            None,
            self._parts.clock(),
            live_forecasts.estimator,
            platform.settings(),
            option or "fifo",
            emulated=platform.emulated,
            retention=platform.retention,
            listeners=Listeners(partial(log_entries, self._log), part.on_commit, part.forget_jobs),
            force_policy=option,
            keep_policy=not platform.alone,
            live_forecasts=live_forecasts,
            experience=platform.experience,
            follow_nodes=platform.follow_nodes,
            policies=self._parts.policies,
        )
        driver = self._parts.driver(plane, self._fatal)
        plane.set_time(stored_state)
        plane.backend = part.open_backend(plane, driver, stored_state)
        plane.open()
        driver.start()
        self.driver = driver
        self._learn(driver, self._options.home)
        part.opened(driver)

    def _learn(self, driver: Driver, home: Path) -> None:
        if not self._options.learn:
            return
        from trainmaster.service.online_learning import Learning

        plane = driver.plane
        self._learning = Learning(driver, home / "learning", plane.cluster, plane.settings.round_ms, self._log.info)
        self._learning.start()

    def _forecast_made(
        self, live_forecasts: LiveForecasts, now_ms: int, cpu_s: float, outlooks: dict[str, Outlook], widening: float
    ) -> None:
        live_forecasts.answered(now_ms, cpu_s, outlooks, widening)
        if self.driver is not None:
            now_s = self.driver.plane.time.instant_s(now_ms)
            known = {job_id: outlook.finish for job_id, outlook in outlooks.items() if outlook.known}
            finish_s = {job_id: now_s + band.p50_s for job_id, band in known.items() if band is not None}
            self._part.on_forecast(finish_s, now_s)

    def _forecast_failed(self, live_forecasts: LiveForecasts, why: str) -> None:
        live_forecasts.failed(why)
        if not self._closing:
            self._log.warning("no forecast", why=why)

    def halt(self) -> None:
        """Leadership is lost: nothing of this session acts when this returns."""
        self._part.halt()

    def close(self) -> None:
        self._closing = True
        if self._learning is not None:
            self._learning.stop()
        if self.driver is not None:
            self.driver.stop()
        if self.forecasts is not None:
            self.forecasts.close()
        self._part.close()
        if self._store is not None:
            self._store.close()
