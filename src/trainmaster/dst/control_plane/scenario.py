"""What a seed of the service's fault simulation begins with: a cluster, a policy, and what users will ask for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trainmaster.dst.control_plane.inline_asgi import Call
from trainmaster.dst.engine.scenario import Scenario, draw_scenario
from trainmaster.engine.records import Settings
from trainmaster.model import event as ev
from trainmaster.model.cluster import Cluster
from trainmaster.model.job import DeadlineKind, JobId, JobSpec
from trainmaster.model.units import GPU_MILLI, MS_PER_S, NEVER_MS
from trainmaster.policies.registry import entries
from trainmaster.sim.truth import TruthOptions

PREFIX = "/api/v1"


@dataclass(frozen=True)
class Action:
    """A user's wish. `name` is that of a submission, a team or a policy; `copy` picks one job of an array."""

    kind: str
    name: str = ""
    body: dict[str, Any] = field(default_factory=dict)
    copy: int | None = None
    tries: int = 0

    @property
    def target(self) -> str:
        return self.name if self.copy is None else f"{self.name}-{self.copy}"

    def again(self) -> Action:
        return replace(self, tries=self.tries + 1)

    def call(self) -> Call:
        match self.kind:
            case "submit":
                return Call("POST", f"{PREFIX}/jobs", self.body)
            case "resize":
                return Call("POST", f"{PREFIX}/jobs/{self.target}/resize", self.body)
            case "entity":
                return Call("PUT", f"{PREFIX}/entities/{self.name}", self.body)
            case "policy":
                return Call("PUT", f"{PREFIX}/policy", self.body)
            case "look":
                return Call("GET", f"{PREFIX}/{self.name}")
            case _:
                return Call("POST", f"{PREFIX}/jobs/{self.target}/{self.kind}")


@dataclass(frozen=True)
class ServiceScenario:
    cluster: Cluster
    policy: str
    settings: Settings
    truth: TruthOptions
    actions: tuple[tuple[int, Action], ...]
    names: tuple[str, ...]
    """Names that jobs will have, each copy of an array by itself."""


def draw_service_scenario(rng: np.random.Generator, seed: int) -> ServiceScenario:
    """The engine's scenario told in the words of the REST interface, with teams, arrays and dependencies besides."""
    base = _renamed(draw_scenario(rng, seed))
    actions: list[tuple[int, Action]] = []
    arrays = {spec.id: int(rng.integers(2, 4)) for spec in base.specs if rng.random() < 0.1}
    ordered = sorted(base.specs, key=lambda spec: spec.submit_ms)
    after: dict[str, list[str]] = {}
    for k, spec in enumerate(ordered):
        if k and spec.id not in arrays and rng.random() < 0.25:
            count = int(rng.integers(1, min(k, 2) + 1))
            chosen = sorted(int(i) for i in rng.choice(k, count, replace=False))
            after[spec.id] = [_copy(ordered[i].id, arrays, rng) for i in chosen]
    for at_ms, event in base.actions:
        actions += [(at_ms, action) for action in _told(event, arrays, after, rng)]
    actions += _teams(rng, base.cluster)
    for _ in range(int(rng.integers(0, 3))):
        name = str(rng.choice([entry.name for entry in entries()] + ["chaos"] * 4))
        actions.append((int(rng.integers(1, 300_000)), Action("policy", name, {"policy": name})))
    for page in ("jobs", "jobs?", "nodes", "events", "entities", "service"):
        actions.append((int(rng.integers(1, 200_000)), Action("look", page.rstrip("?"))))
    names = tuple(
        name
        for spec in base.specs
        for name in ([f"{spec.id}-{k}" for k in range(arrays[spec.id])] if spec.id in arrays else [str(spec.id)])
    )
    actions.sort(key=lambda item: item[0])
    return ServiceScenario(base.cluster, base.policy_name, base.settings, base.truth, tuple(actions), names)


def _renamed(base: Scenario) -> Scenario:
    """Jobs by names that no id looks like; the service gives the ids."""

    def name(job_id: JobId) -> JobId:
        return JobId(job_id.replace("job", "train"))

    actions = []
    for at_ms, event in base.actions:
        if isinstance(event, ev.JobSubmitted):
            event = ev.JobSubmitted(replace(event.spec, id=name(event.spec.id)))
        elif not isinstance(event, ev.PolicyChanged | ev.EntityChanged | ev.SpeedsLearned):
            event = replace(event, job_id=name(event.job_id))
        actions.append((at_ms, event))
    specs = tuple(replace(spec, id=name(spec.id)) for spec in base.specs)
    return replace(base, specs=specs, actions=tuple(actions))


def _copy(name: str, arrays: dict[Any, int], rng: np.random.Generator) -> str:
    return f"{name}-{int(rng.integers(arrays[name]))}" if name in arrays else name


def _told(
    event: ev.UserEvent, arrays: dict[Any, int], after: dict[str, list[str]], rng: np.random.Generator
) -> list[Action]:
    match event:
        case ev.JobSubmitted(spec):
            return [Action("submit", spec.id, _request(spec, arrays.get(spec.id), after.get(spec.id, [])))]
        case ev.JobRangeChanged():
            body = {"workers": {"min": event.workers_min, "max": event.workers_max}}
            return [Action("resize", event.job_id, body, _index(event.job_id, arrays, rng))]
        case ev.JobCancelled() | ev.JobPaused() | ev.JobResumed():
            kind = {ev.JobCancelled: "cancel", ev.JobPaused: "pause", ev.JobResumed: "resume"}[type(event)]
            return [Action(kind, event.job_id, copy=_index(event.job_id, arrays, rng))]
        case _:
            return []


def _index(name: str, arrays: dict[Any, int], rng: np.random.Generator) -> int | None:
    return int(rng.integers(arrays[name])) if name in arrays else None


def _request(spec: JobSpec, array: int | None, after: list[str]) -> dict[str, Any]:
    body: dict[str, Any] = {
        "command": ["train", spec.id],
        "name": spec.id,
        "workers": {"min": spec.workers_min, "max": spec.workers_max},
        "servers": {"min": spec.servers_min, "max": spec.servers_max},
        "gpus_per_worker": spec.worker.gpu_milli / GPU_MILLI,
        "cpus_per_worker": spec.worker.cpu_milli / 1000,
        "memory_mib_per_worker": spec.worker.mem_mib,
        "gpu_types": list(spec.gpu_types),
        "steps": spec.work_total,
        "steps_per_s": dict(spec.steps_per_s),
        "weight": spec.weight,
        "priority": spec.priority,
        "entity": spec.entity or None,
        "max_attempts": spec.max_attempts,
        "preemptible": spec.preemptible,
        "after": after,
        "array": array,
        "request_id": f"request-{spec.id}",
    }
    if spec.deadline_ms < NEVER_MS:
        body["deadline_s"] = (spec.deadline_ms - spec.submit_ms) / MS_PER_S
        body["deadline_kind"] = "soft" if spec.deadline_kind == DeadlineKind.SOFT else "hard"
    return body


def _teams(rng: np.random.Generator, cluster: Cluster) -> list[tuple[int, Action]]:
    """`red` has a quota from the beginning that is only raised; that of `blue` comes, changes and goes."""
    actions: list[tuple[int, Action]] = []
    if rng.random() < 0.5:
        quota = float(rng.integers(4, max(cluster.total_gpus, 5)))
        actions.append((0, Action("entity", "red", {"weight": 2.0, "quota_gpus": quota})))
        if rng.random() < 0.5:
            later = int(rng.integers(10_000, 300_000))
            actions.append((later, Action("entity", "red", {"weight": 1.0, "quota_gpus": quota + 2})))
    if rng.random() < 0.5:
        times = sorted(int(at_ms) for at_ms in rng.integers(0, 300_000, 3))
        for at_ms, quota in zip(times, (float(rng.integers(4, 9)), 4.0, None), strict=True):
            actions.append((at_ms, Action("entity", "blue", {"weight": 0.5, "quota_gpus": quota})))
    return actions
