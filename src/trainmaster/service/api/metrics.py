"""Prometheus metrics: read from the control plane when they are asked for, so that they cost nothing otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector

from trainmaster.service.api.views import Views
from trainmaster.service.control.control_plane import ControlPlane


class _Families:
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def exposition(plane: ControlPlane) -> bytes:
    """The text that Prometheus reads."""
    registry = CollectorRegistry()
    registry.register(_Families(list(_families(plane))))
    ProcessCollector(namespace="trainmaster", registry=registry)
    return generate_latest(registry)


def _families(plane: ControlPlane) -> Iterator[Metric]:
    tally = plane.tally
    up = GaugeMetricFamily("trainmaster_store_available", "1 when the store can be read and written.")
    up.add_metric([], 0.0 if plane.engine is None else 1.0)
    yield up
    yield from _counters(
        ("trainmaster_batches", "Steps of the engine that were committed.", tally.batches),
        ("trainmaster_events", "Events that the engine took.", tally.events),
        ("trainmaster_jobs_submitted", "Jobs accepted.", tally.submitted),
        ("trainmaster_store_faults", "Commits or reads that the store refused.", tally.store_faults),
        ("trainmaster_set_aside", "Requests, reports and objects that could not be taken.", tally.set_aside),
        ("trainmaster_policy_faults", "Decisions in which the policy failed and FIFO stood in.", tally.policy_faults),
        ("trainmaster_batch_seconds", "Time spent in batches: deciding, committing, dispatching.", tally.batch_s),
    )
    yield _by_label("trainmaster_jobs_ended", "Jobs that ended.", "state", tally.ended)
    yield _by_label("trainmaster_commands", "Commands sent to the backend.", "kind", tally.commands)
    yield from _forecast_metrics(plane)
    engine = plane.engine
    if engine is None:
        return
    yield from _counters(
        ("trainmaster_decisions", "Decisions of the policy, over restarts.", engine.decisions),
        ("trainmaster_plans_refused", "Plans that broke a rule, over restarts.", engine.plans_refused),
    )
    views = Views(plane)
    jobs = GaugeMetricFamily(
        "trainmaster_jobs", "Jobs by state; ended ones as far as the history goes.", labels=["state"]
    )
    for state, number in sorted(views.counts().items()):
        jobs.add_metric([state], number)
    yield jobs
    gpus = GaugeMetricFamily("trainmaster_gpus", "GPUs by type, whether their node is up or not.", labels=["type"])
    free = GaugeMetricFamily("trainmaster_gpus_free", "GPUs that are free on nodes that are up.", labels=["type"])
    nodes = GaugeMetricFamily("trainmaster_nodes_up", "Nodes that are up.", labels=["type"])
    listed = views.nodes()
    for kind in engine.cluster.types:
        of_kind = [node for node in listed if node["accelerator"] == kind]
        gpus.add_metric([kind], sum(node["gpus"] for node in of_kind))
        free.add_metric([kind], sum(node["free_gpus"] for node in of_kind))
        nodes.add_metric([kind], sum(node["up"] for node in of_kind))
    yield from (gpus, free, nodes)
    policy = GaugeMetricFamily("trainmaster_policy_info", "The policy in force.", labels=["policy"])
    policy.add_metric([plane.policy_name], 1.0)
    yield policy


def _forecast_metrics(plane: ControlPlane) -> Iterator[Metric]:
    """How often the service looks ahead, what that costs, and how right it was."""
    live_forecasts = plane.live_forecasts
    if live_forecasts is None:
        return
    yield from _counters(
        ("trainmaster_forecasts", "Forecasts of the whole queue.", live_forecasts.forecasts),
        (
            "trainmaster_forecast_cpu_seconds",
            "CPU time of the process that looks ahead.",
            live_forecasts.forecast_cpu_s,
        ),
    )
    error = GaugeMetricFamily(
        "trainmaster_eta_error_ratio",
        "Median error of the predicted finish over a job's time in the system, by how much of that had passed.",
        labels=["life"],
    )
    inside = GaugeMetricFamily(
        "trainmaster_eta_inside_band_ratio", "Jobs that finished inside the predicted 90 % band.", labels=["life"]
    )
    for row in live_forecasts.accuracy_rows():
        life = [f"{row['at_fraction_of_life']:g}"]
        error.add_metric(life, row["median_error"])
        inside.add_metric(life, row["inside_90_fraction"])
    yield from (error, inside)


def _counters(*rows: tuple[str, str, float]) -> Iterator[Metric]:
    """Counters without labels: name, text, value."""
    for name, text, value in rows:
        counter = CounterMetricFamily(name, text)
        counter.add_metric([], value)
        yield counter


def _by_label(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family
