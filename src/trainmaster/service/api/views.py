"""What clients see: the bodies of `trainmaster.wire.api`, as plain JSON data, made from engine and store."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from statistics import NormalDist
from typing import Any

from trainmaster import __version__
from trainmaster.engine import queries
from trainmaster.engine.lifecycle import LIVE
from trainmaster.engine.persistence import ended_from_record
from trainmaster.engine.ports import EndedFilter, LogEntry, number_of, order_of
from trainmaster.engine.queries import Explainer, JobState
from trainmaster.engine.records import Ended
from trainmaster.estimate.speeds.knowledge import profile_of
from trainmaster.estimate.speeds.learned import DECLARED_SIGMA
from trainmaster.estimate.speeds.model import BETWEEN_RUNS
from trainmaster.estimate.speeds.observations import Place, merged
from trainmaster.forecast.forecast import Band, note
from trainmaster.forecast.remedies import remedies
from trainmaster.gang.failure_text import hint
from trainmaster.jobspec.engine import request_of
from trainmaster.model.allocation import Allocation
from trainmaster.model.errors import InputError
from trainmaster.model.job import STATE_OF, TERMINAL, JobId, JobSpec, Phase
from trainmaster.model.reason_text import sentence
from trainmaster.model.reasons import Reason, Why
from trainmaster.model.units import GPU_MILLI, MS_PER_S, NEVER_MS
from trainmaster.service.api.problems import Conflict, NotFound
from trainmaster.service.control.control_plane import ControlPlane
from trainmaster.service.local.tokens import OPERATOR, Principal

Json = dict[str, Any]
MAX_PAGE = 1_000
MAX_ROWS = 100
"""Of experience in a page: each may have many kilobytes."""
MAX_PAGE_BYTES = 4 << 20
"""Of commands and environments in a page: further jobs are on the next one."""
MAX_ENDED = 5_000
ADVICE_S = 0.3
"""After so long no further advice is looked for: `why` is answered between two decisions."""


HIDDEN = "(hidden)"
"""Instead of the values of another user's environment."""


class Views:
    """Reads the control plane at one moment; not to be kept."""

    def __init__(self, plane: ControlPlane, reader: Principal | None = None) -> None:
        """Without a reader nothing is hidden."""
        self.plane = plane
        self.reader = reader
        self.engine = plane.live
        self.now_ms = max(plane.now_ms, self.engine.now_ms)

    @cached_property
    def _explainer(self) -> Explainer:
        return Explainer(self.engine, self.plane.slow_starts)

    @cached_property
    def _positions(self) -> dict[JobId, int]:
        return queries.queue_positions(self.engine)

    @cached_property
    def _notices(self) -> dict[JobId, float]:
        return queries.notices_s(self.engine, self.now_ms)

    # -- jobs ----------------------------------------------------------------------------------------

    def job(self, job_id: str) -> Json:
        if queries.is_active(self.engine, job_id):
            return self._active([job_id])[0]
        record = self.plane.store.find_ended(job_id)
        if record is None:
            raise NotFound(f"job '{job_id[:80]}' not found", expected="an id or a name")
        try:
            return self._ended(record)
        except Exception as error:
            self._unreadable(job_id, record, error)
            remedy = "The service's log says why; `trainmaster doctor` lists such records."
            raise Conflict(f"the record of {job_id} is damaged", where="job", remedy=remedy) from None

    def _unreadable(self, job_id: str, record: Json, error: Exception) -> None:
        """An ended job; told once."""
        if job_id not in self.plane.quarantined:
            self.plane.quarantined[job_id] = record
            self.plane.set_aside("record", job_id, error)

    def jobs(
        self,
        states: frozenset[str] | None,
        name: str | None,
        entity: str | None,
        limit: int,
        cursor: str | None,
        spaces: frozenset[str] | None = None,
    ) -> Json:
        """A page, oldest first; `cursor` is the number of the last job of the page before.

        `spaces`: only jobs of these namespaces."""
        after = _read_cursor(cursor)
        phases = None if states is None else {int(p) for p, state in STATE_OF.items() if state.value in states}
        specs = self._active_specs(phases, name, entity, spaces)
        numbered = [(order_of(spec.id, spec.submit_ms), spec.id) for spec in specs]
        active = [pair for pair in sorted(numbered) if pair[0] > after]
        total, ended = len(specs), []
        over = frozenset(TERMINAL) if phases is None else TERMINAL & phases
        if over:
            where = EndedFilter(frozenset(over), name, entity, spaces)
            ended = self.plane.store.ended_page(after, limit + 1, where)
            total += self.plane.store.count_ended(where)
        page: list[tuple[int, JobId | Json]] = [*active[: limit + 1]]
        page += [(order_of(record["spec"]["id"], record["spec"].get("submit_ms", 0)), record) for record in ended]
        page.sort(key=lambda pair: pair[0])
        shown = self._within_size(page[:limit])
        ids = [item for _, item in shown if isinstance(item, str)]
        found = iter(queries.job_states(self.engine, ids, self.now_ms))
        views: list[Json] = []
        for _, item in shown:  # one job that cannot be shown hides no other
            try:
                views.append(self._one(next(found)) if isinstance(item, str) else self._ended(item))
            except Exception as error:
                if isinstance(item, str):
                    self.plane.set_aside("view", item, error)
                else:
                    self._unreadable(item["spec"]["id"], item, error)
        more = str(shown[-1][0]) if len(page) > len(shown) and shown else None
        return {"jobs": views, "cursor": more, "total": total}

    def _within_size(self, page: list[tuple[int, JobId | Json]]) -> list[tuple[int, JobId | Json]]:
        """As many as `MAX_PAGE_BYTES` of commands and environments allow, at least one."""
        left = MAX_PAGE_BYTES
        for k, (_, item) in enumerate(page):
            spec = queries.spec_of(self.engine, item) if isinstance(item, str) else None
            left -= _size_of(spec.payload if spec is not None else item["spec"].get("payload"))  # type: ignore[index]
            if left < 0:
                return page[: max(k, 1)]
        return page

    def _active_specs(
        self, phases: set[int] | None, name: str | None, entity: str | None, spaces: frozenset[str] | None
    ) -> list[JobSpec]:
        return [
            spec
            for spec in queries.active_specs(self.engine, phases)
            if (name is None or spec.name == name)
            and (entity is None or spec.entity == entity)
            and (spaces is None or spec.payload.get("namespace") in spaces)
        ]

    def _active(self, job_ids: Sequence[str]) -> list[Json]:
        return [self._one(state) for state in queries.job_states(self.engine, job_ids, self.now_ms)]

    def _one(self, state: JobState) -> Json:
        instant_s = self.plane.time.instant_s
        spec, phase, first_ms = state.spec, state.phase, state.first_start_ms
        reason = self._explainer.reason(spec.id)
        allocation = state.allocation or state.occupied
        running = phase in (Phase.RUNNING, Phase.RESIZING)
        outlook = None if self.plane.live_forecasts is None else self.plane.live_forecasts.outlook(spec.id, self.now_ms)
        eta = None if outlook is None or not outlook.known else _band(outlook.finish)
        told = "" if outlook is None else note(outlook)
        if eta is None and running:
            eta = self._eta(state)
            told = "" if eta is not None else told
        left_s = eta["p50_s"] if eta is not None else state.remaining_s
        slack_s = None
        if spec.deadline_ms < NEVER_MS:
            slack_s = (spec.deadline_ms - self.now_ms) / MS_PER_S - (left_s if math.isfinite(left_s) else 0.0)
        return {
            "id": spec.id,
            "name": spec.name,
            "namespace": spec.payload.get("namespace"),
            "state": STATE_OF[phase].value,
            "phase": phase.name.lower(),
            "reason": sentence(reason),
            "why": "" if reason is None else reason.why.name.lower(),
            "position": self._positions.get(spec.id),
            "allocation": [] if allocation is None or phase not in LIVE else self._places(allocation),
            "sharing": [shared._asdict() for shared in queries.shared_with(self.engine, spec.id)],
            "progress": self._reported(state),
            "eta_s": None if eta is None else eta["p50_s"],
            "eta": eta,
            "eta_note": told,
            "starts": None if outlook is None or first_ms >= 0 else _band(outlook.start),
            "slack_s": slack_s,
            "stalled_s": self.plane.watch.stalled_s(spec.id, self.now_ms) if running else None,
            "preempted_in_s": self._notices.get(spec.id),
            "attempts": state.attempts,
            "preemptions": state.preemptions,
            "submitted": instant_s(spec.submit_ms),
            "started": None if first_ms < 0 else instant_s(first_ms),
            "ended": None,
            **_failure(None if running else self.plane.exits.get(spec.id), self.plane.outputs.get(spec.id, "")),
            "emulated": self.plane.emulated,
            "cost": _finite(state.cost),
            "request": self._request(spec),
        }

    def _reported(self, state: JobState) -> Json:
        """What the attempt reported, else what is saved: an estimate is never shown as progress."""
        phase, total = state.phase, state.spec.work_total
        report = self.plane.watch.reports.of(state.spec.id, state.generation) if phase in LIVE else None
        if report is None:
            return _progress(state.work_saved, total)
        rate = report.rate if phase in (Phase.RUNNING, Phase.RESIZING) else None
        age_s = max(self.now_ms - report.at_ms, 0) / MS_PER_S
        return _progress(report.work, total, rate, report.loss, age_s)

    def _eta(self, state: JobState) -> Json | None:
        """From the declared speed and the measured one, as far as there are any."""
        spec, allocation, rate = state.spec, state.allocation, state.rate
        if spec.work_total is None or allocation is None or not rate > 0 or not math.isfinite(rate):
            return None
        report = self.plane.watch.reports.of(spec.id, state.generation)
        if not spec.steps_per_s and (report is None or report.rate is None):
            return None  # nobody has said how fast it is
        kind = max(allocation.accelerator, 0)
        declared = queries.speeds_of(self.engine, spec.id)[self.engine.cluster.types[kind]]
        if not 0 < declared < math.inf:
            return None
        sigma = BETWEEN_RUNS if report is not None and report.rate is not None else DECLARED_SIGMA
        left_s = max(spec.work_total - state.work_done, 0.0) / rate
        points = {"p05_s": 0.05, "p50_s": 0.5, "p90_s": 0.9, "p95_s": 0.95}
        band = {name: left_s * math.exp(NormalDist().inv_cdf(p) * sigma) for name, p in points.items()}
        delay_s = max(state.productive_ms - self.now_ms, 0) / MS_PER_S
        if not math.isfinite(band["p95_s"]):
            return None
        return {name: seconds + delay_s for name, seconds in band.items()}

    def _places(self, allocation: Allocation) -> list[Json]:
        nodes = self.engine.cluster.nodes
        return [
            {
                "node": nodes[part.node].id,
                "accelerator": nodes[part.node].accelerator,
                "workers": part.workers,
                "servers": part.servers,
                "devices": list(part.devices),
            }
            for part in allocation.parts
        ]

    def _request(self, spec: JobSpec) -> Json:
        """As it was made; the environment, where secrets are, only for its user and for operators."""
        request, owner = request_of(spec), spec.payload.get("user")
        reader = self.reader
        if reader is None or reader.role == OPERATOR or owner in (None, reader.name) or not request.get("env"):
            return request
        return {**request, "env": dict.fromkeys(request["env"], HIDDEN)}

    def _ended(self, record: Json) -> Json:
        end = ended_from_record(record)
        spec, instant_s = end.spec, self.plane.time.instant_s
        how = (record.get("service") or {}).get("exit")
        why, text = _last_word(end, how)
        return {
            "id": spec.id,
            "name": spec.name,
            "namespace": spec.payload.get("namespace"),
            "state": STATE_OF[end.phase].value,
            "phase": end.phase.name.lower(),
            "reason": text,
            "why": why,
            "position": None,
            "allocation": [],
            "progress": _progress(end.work_done, spec.work_total),
            "eta_s": None,
            "eta": None,
            "eta_note": "",
            "starts": None,
            "slack_s": (spec.deadline_ms - end.ended_ms) / MS_PER_S if spec.deadline_ms < NEVER_MS else None,
            "stalled_s": None,
            "preempted_in_s": None,
            "attempts": end.attempts,
            "preemptions": end.preemptions,
            "submitted": instant_s(spec.submit_ms),
            "started": None if end.first_start_ms < 0 else instant_s(end.first_start_ms),
            "ended": instant_s(end.ended_ms),
            **_failure(how, (record.get("service") or {}).get("output", "")),
            "emulated": self.plane.emulated,
            "cost": _finite(end.cost),
            "request": self._request(spec),
        }

    def why(self, job_id: str) -> Json:
        phase = queries.phase_of(self.engine, job_id)
        if phase is None:
            view = self.job(job_id)
            return _why_body(job_id, view["why"], view["reason"] or f"it is {view['state']}", Reason(Why.NONE), [])
        reason = self._explainer.reason(job_id)
        if reason is None:
            return _why_body(job_id, "", f"it does not wait: it is {STATE_OF[phase].value}", Reason(Why.NONE), [])
        found = [remedy.text for remedy in remedies(self.engine, job_id, self.now_ms, ADVICE_S)]
        if alone := queries.why_alone(self.engine, job_id):
            found.append(f"It shares no GPU: {alone}.")
        body = _why_body(job_id, reason.why.name.lower(), sentence(reason), reason, found)
        body["notices"] = {job: self._notices[job] for job, _ in body["holders"] if job in self._notices}
        return body

    def speeds(self, job_id: str) -> Json:
        """What is believed of a job's speed, by size; on several nodes only what does not fit on one."""
        if self.plane.live_forecasts is None:
            raise NotFound("this service does not learn speeds")
        spec, estimator = self._spec(job_id), self.plane.live_forecasts.estimator
        cluster, profile = self.engine.cluster, profile_of(spec)
        table = estimator.table(spec, cluster)
        told = estimator.speeds(spec, cluster.types)
        about = [one for one in estimator.knowledge.about(profile) if one.profile.key == profile.key]
        seen = {one.place: math.exp(one.log_speed) for one in merged(about, BETWEEN_RUNS)}
        rows = []
        for kind, name in enumerate(cluster.types):
            for workers, servers in itertools.product(table.workers, table.servers):
                spread = workers > table.node_workers[kind]
                if workers > spec.workers_max or told.here[kind] <= 0:
                    continue
                p10, p50, p90 = (table.speed(kind, workers, servers, spread, p) for p in (0.9, 0.5, 0.1))
                rows.append(
                    {"accelerator": name, "workers": workers, "servers": servers, "spread": spread, "p10": p10,
                     "p50": p50, "p90": p90, "measured": seen.get(Place(workers, servers, spread, name))}
                )  # fmt: skip
        text = f"{told.jobs} {'run' if told.jobs == 1 else 'runs'} {told.text}" if told.jobs else ""
        return {"profile": profile.key, "known": table.known, "text": text, "speeds": rows}

    def _spec(self, job_id: str) -> JobSpec:
        spec = queries.spec_of(self.engine, job_id)
        record = None if spec is not None else self.plane.store.find_ended(job_id)
        if record is not None:
            spec = ended_from_record(record).spec
        if spec is None:
            raise NotFound(f"job '{job_id[:80]}' not found", expected="an id or a name")
        return spec

    # -- the rest ------------------------------------------------------------------------------------

    def nodes(self) -> list[Json]:
        return [
            {
                "id": node.id,
                "accelerator": node.accelerator,
                "gpus": node.gpus,
                "free_gpus": state.free_gpus,
                "up": state.up,
                "emulated": self.plane.emulated,
                "rack": node.rack,
                "jobs": sorted(state.jobs, key=lambda job_id: (number_of(job_id), job_id)),
            }
            for node, state in zip(self.engine.cluster.nodes, queries.node_states(self.engine), strict=True)
            if state.jobs or not self.plane.is_gone(node.id)
        ]

    def events(self, after: int, limit: int, job_id: str | None, last: int | None = None) -> Json:
        """Those above `after`; with `last`, of all jobs, only the newest so many of them."""
        if last is not None and job_id is None:
            after = max(after, self.plane.store.last_log_number() - last)
        entries = self.plane.store.log_page(after, limit, job_id)
        events = [self._event(entry) for entry in entries]
        return {"events": events, "next": events[-1]["number"] if events else after}

    def experience(self, after: int, limit: int) -> Json:
        """The rows that the store has of these numbers, oldest first."""
        lived = self.plane.experience
        first = max(after, lived.number - lived.bounds.rows, 0)
        rows = lived.rows(self.plane.store.document, first, min(first + limit, lived.number))
        return {"rows": rows, "next": rows[-1]["number"] + 1 if rows else after}

    def _event(self, entry: LogEntry) -> Json:
        return {
            "number": entry.number,
            "at": self.plane.time.instant_s(entry.at_ms),
            "job": entry.job_id,
            "kind": entry.kind,
            "text": entry.text,
            "details": entry.details,
        }

    def entities(self, also: str | None = None) -> list[Json]:
        """Teams that have jobs, a weight, a quota or a policy; those without a name are left out."""
        engine, use, idle = self.engine, queries.team_use(self.engine), queries.TeamUse(0, 0)
        set_up = (*engine.entity_weights, *engine.quotas, *engine.entity_policies)
        names = {*use, *set_up, *([also] if also else [])} - {""}
        return [
            {
                "name": name,
                "weight": engine.entity_weights.get(name, 1.0),
                "quota_gpus": engine.quotas[name] / GPU_MILLI if name in engine.quotas else None,
                "policy": engine.entity_policies.get(name),
                "used_gpus": use.get(name, idle).gpu_milli / GPU_MILLI,
                "jobs": use.get(name, idle).jobs,
            }
            for name in sorted(names)
        ]

    def namespaces(self) -> frozenset[str]:
        """Those that have jobs, or have had some not long ago."""
        found = {spec.payload.get("namespace") for spec in queries.active_specs(self.engine)}
        ended = self.plane.store.ended_page(-1, MAX_ENDED, EndedFilter())
        found |= {record["spec"].get("payload", {}).get("namespace") for record in ended}
        return frozenset(space for space in found if space)

    def question(self) -> Json:
        if self.plane.live_forecasts is None:
            raise NotFound("this service does not look ahead")
        return self.plane.live_forecasts.question(self.plane, self.now_ms)

    def accuracy(self) -> list[Json]:
        return [] if self.plane.live_forecasts is None else self.plane.live_forecasts.accuracy_rows()

    def counts(self) -> dict[str, int]:
        """Jobs by state: active ones, and those that the history still holds."""
        counts = {state.value: 0 for state in STATE_OF.values()}
        for phase, number in queries.phase_counts(self.engine).items():
            counts[STATE_OF[phase].value] += number
        for phase in TERMINAL:
            counts[STATE_OF[Phase(phase)].value] += self.plane.store.count_ended(EndedFilter(frozenset({phase})))
        return counts

    def service(self, backend: str, started: float, role: str) -> Json:
        return {
            "version": __version__,
            "policy": self.plane.policy_name,
            "backend": backend,
            "cluster": self.engine.cluster.nodes_text(),
            "emulated": self.plane.emulated,
            "started": started,
            "jobs": self.counts(),
            "decisions": self.engine.decisions,
            "plans_refused": self.engine.plans_refused,
            "quarantined": sorted(self.plane.quarantined),
            "clock_jump_s": self.plane.time.doubt_ms / MS_PER_S,
            "role": role,
        }


def _size_of(payload: Any) -> int:
    """Characters of a job's command and environment."""
    try:
        return sum(map(len, payload["command"])) + sum(len(key) + len(text) for key, text in payload["env"].items())
    except (KeyError, TypeError, AttributeError):
        return 0  # another platform's, or damaged


def _band(band: Band | None) -> Json | None:
    return None if band is None else asdict(band)


def _read_cursor(cursor: str | None) -> int:
    if cursor is None:
        return -1
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise InputError(f"invalid cursor '{cursor[:40]}'", "what an earlier page gave", column="cursor")
    return int(cursor)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _progress(
    work_done: float,
    total: float | None,
    rate: float | None = None,
    loss: float | None = None,
    age_s: float | None = None,
) -> Json:
    fraction = None if not total else min(max(work_done / total, 0.0), 1.0)
    return {
        "work_done": work_done if math.isfinite(work_done) else 0.0,
        "work_total": total,
        "fraction": fraction,
        "rate": None if rate is None else _finite(rate),
        "loss": None if loss is None else _finite(loss),
        "age_s": age_s,
    }


def _failure(how: str | None, output: str) -> Json:
    """How the last attempt ended; if it failed, what it wrote last and what to do about it."""
    failed = how is not None and not how.startswith("exit 0")
    shown = output if failed else ""
    return {"exit": how, "output": shown, "hint": hint(shown, how) if failed and how else ""}


def _last_word(end: Ended, how: str | None) -> tuple[str, str]:
    if end.rejection is not None:
        return end.rejection.why.name.lower(), sentence(Reason(end.rejection.why, details=dict(end.rejection.details)))
    if end.phase == Phase.FAILED:
        times = f"{end.attempts} attempt{'' if end.attempts == 1 else 's'}"
        return "", f"failed after {times}" + (f", last: {how}" if how else "")
    return "", ""


def _why_body(job_id: str, why: str, text: str, reason: Reason, found: list[str]) -> Json:
    return {
        "id": job_id,
        "why": why,
        "text": text,
        "needs_gpus": reason.needs_gpus,
        "free": dict(reason.free),
        "holders": [list(holder) for holder in reason.holders],
        "missing_gpus": reason.missing_gpus,
        "missing_type": reason.missing_type,
        "behind": reason.behind,
        "details": dict(reason.details),
        "notices": {},
        "advice": found,
    }
