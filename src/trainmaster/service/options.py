"""Options of `trainmaster up`, listed once: the command shows them; one that a platform cannot honour is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from trainmaster.estimate.catalogue import load_catalogue
from trainmaster.model.errors import InputError
from trainmaster.model.placement import parse_strategy
from trainmaster.policies.registry import create
from trainmaster.service.kubernetes.namespace_teams import parse_bindings

BACKENDS = ("local", "simulated", "kubernetes")
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class Flag:
    """How the command line shows an option, and what it takes."""

    help: str
    low: float = 0
    high: float = 1e9
    only: str = ""
    """`kubernetes`, or `one machine`: the platform that alone honours it."""
    short: str = ""


def _option(default: Any, text: str, **more: Any) -> Any:
    return field(default=default, metadata={"flag": Flag(text, **more)})


@dataclass(frozen=True)
class ServiceOptions:
    """In the command's words and units; None or False: not given. A field without help is no option of the command."""

    home: Path
    port: int | None = _option(None, "Port to listen on; default 8642, or a free one. 0: any.", high=65_535)
    host: str = _option("127.0.0.1", "Address to listen on; others than loopback need tokens.")
    policy: str | None = _option(
        None, "Policy; default the one last in force, else fifo. `trainmaster policies` lists."
    )
    nodes: str | None = _option(
        None,
        "Declare emulated nodes, such as v100:2x4 (two nodes of 4); default: this machine.",
        only="one machine",
    )
    throughputs: str | None = _option(
        None, "With --nodes: throughput table by whose pairs jobs on one device slow each other.", only="one machine"
    )
    round_s: float | None = _option(None, "Length of a round in seconds.", low=0.001)
    placement: str = _option("pack", "pack, spread, first-fit or best-fit.")
    backend: str = _option(
        "local", "local; kubernetes: TrainingJobs of a cluster; simulated: jobs advance at their declared speed."
    )
    kubeconfig: Path | None = _option(  # noqa: RUF009 - a field
        None, "Cluster of --backend kubernetes; default $KUBECONFIG, the pod's own, ~/.kube.", only="kubernetes"
    )
    namespace: str | None = _option(
        None, "Namespace of the service's state; default the pod's, else trainmaster-system.", only="kubernetes"
    )
    agent_host: str | None = _option(
        None, "Address by which pods reach this process; default $POD_IP, or as nodes see it.", only="kubernetes"
    )
    agent_port: int | None = _option(
        None,
        "Port at which launchers renew their leases (kubernetes); default 8643.",
        low=1,
        high=65_535,
        only="kubernetes",
    )
    lease_s: float | None = _option(
        None,
        "Seconds for which a trainer goes on when it cannot be reached (kubernetes); default 30.",
        low=2,
        high=10 * 365 * 86_400,
        only="kubernetes",
    )
    bind_teams: str | None = _option(
        None,
        "Kubernetes: jobs count for teams of their namespace: `own`, or NAMESPACE=TEAM+TEAM,NAMESPACE=TEAM.",
        only="kubernetes",
    )
    stop_jobs: bool = _option(False, "Stop all jobs when the service stops; default: they go on.", only="one machine")
    reset_nodes: bool = _option(
        False, "Take other nodes than before: jobs are kept, and start again.", only="one machine"
    )
    elastic_fill: bool = _option(
        True,
        "Under fifo, sjf, srtf, las and tiresias: offer idle GPUs to elastic jobs, take them back for others.",
    )
    min_run_s: float | None = _option(
        None, "Seconds that a job runs before a higher priority may preempt it; default 120."
    )
    preempt_notice_s: float = _option(300.0, "Seconds that a job is spared, after a notice, that would lose much work.")
    preempt_loss_s: float = _option(600.0, "Seconds of unsaved work from which on a preemption needs a notice.")
    learn: bool = _option(False, "With policy dl2: go on training it on the jobs that end.", only="one machine")
    trust_users: bool = _option(
        False, "Accept tokens of further users: their jobs can read each other's files.", only="one machine"
    )
    root_jobs: bool = _option(False, "Accept accounts of root in the file `accounts`.", only="one machine")
    quiet: bool = _option(False, "Say nothing on the terminal.", short="-q")
    log_level: str = _option("info", "debug, info, warning or error.")
    keep_days: float | None = _option(
        None,
        "Days for which ended jobs, logs and checkpoints are kept; default 30, on a cluster 14.",
        low=1e-9,
        high=1e6,
    )
    restart_cost_s: float = 2.0
    """What policies are told that a restart costs."""
    resize_cost_s: float = 0.5


def flags() -> Iterator[tuple[str, str, Flag, Any, str]]:
    """(field, `--option`, flag, default, type) of each option of the command."""
    for item in fields(ServiceOptions):
        if "flag" in item.metadata:
            name = "--" + item.name.removesuffix("_s").replace("_", "-")
            yield item.name, name, item.metadata["flag"], item.default, str(item.type).partition(" ")[0]


def check_options(options: ServiceOptions) -> None:
    """Raise `InputError` for the first option that cannot be honoured."""
    _one_of("backend", options.backend, BACKENDS, "--backend")
    elsewhere = "one machine" if options.backend == "kubernetes" else "kubernetes"
    for name, option, flag, _, _ in flags():
        value = getattr(options, name)
        if flag.only == elsewhere and value not in (None, False):
            raise InputError(
                f"{option} cannot be used with --backend {options.backend}",
                f"no {option}",
                f"Leave {option} out.",
                column=option,
            )
        if isinstance(value, int | float) and not flag.low <= value <= flag.high:
            raise InputError(f"{value:g} is out of range", f"{flag.low:g} to {flag.high:g}", column=option)
    if options.throughputs is not None:
        if options.nodes is None:
            raise InputError(
                "--throughputs without --nodes",
                "emulated nodes: real devices have speeds of their own",
                "Declare nodes with --nodes, or leave --throughputs out.",
                column="--throughputs",
            )
        load_catalogue(options.throughputs)
    if options.policy is not None:
        create(options.policy)
    if options.bind_teams is not None:
        parse_bindings(options.bind_teams)
    parse_strategy(options.placement)
    if options.learn:
        from trainmaster.service.online_learning import check_learning

        check_learning(options.policy)
    _one_of("log level", options.log_level, LOG_LEVELS, "--log-level")


def _one_of(what: str, value: str, known: tuple[str, ...], option: str) -> None:
    if value not in known:
        raise InputError(f"unknown {what} '{value}'", f"{', '.join(known[:-1])} or {known[-1]}", column=option)
