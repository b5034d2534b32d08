"""Options of `trainmaster up`, checked: one that a platform cannot honour is refused by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainmaster.estimate.catalogue import load_catalogue
from trainmaster.model.errors import InputError
from trainmaster.model.placement import parse_strategy
from trainmaster.policies.registry import create
from trainmaster.service.kubernetes.namespace_teams import parse_bindings

BACKENDS = ("local", "simulated", "kubernetes")
_ONLY_KUBERNETES = {
    "kubeconfig": "--kubeconfig", "namespace": "--namespace", "agent_host": "--agent-host",
    "agent_port": "--agent-port", "lease_s": "--lease", "bind_teams": "--bind-teams",
}  # fmt: skip
_ONLY_ONE_MACHINE = {
    "nodes": "--nodes", "reset_nodes": "--reset-nodes", "stop_jobs": "--stop-jobs", "learn": "--learn",
    "trust_users": "--trust-users", "root_jobs": "--root-jobs", "throughputs": "--throughputs",
}  # fmt: skip


@dataclass(frozen=True)
class ServiceOptions:
    """In the command's words and units; None or False: not given."""

    home: Path
    host: str = "127.0.0.1"
    port: int | None = None
    """None: the usual one, or any free one if that is taken."""
    policy: str | None = None
    """None: the one that was last in force, else fifo."""
    nodes: str | None = None
    throughputs: str | None = None
    """Table of throughputs by whose pairs jobs on one emulated device slow each other; None: to half their speed."""
    round_s: float | None = None
    placement: str = "pack"
    backend: str = "local"
    kubeconfig: Path | None = None
    namespace: str | None = None
    """Of the service's own state; default: that of the pod, outside a cluster trainmaster-system."""
    agent_host: str | None = None
    agent_port: int | None = None
    lease_s: float | None = None
    bind_teams: str | None = None
    """Teams of namespaces (see `namespace_teams`); None: jobs name any team."""
    stop_jobs: bool = False
    reset_nodes: bool = False
    trust_users: bool = False
    """Further users may submit, although jobs can read the service's files."""
    root_jobs: bool = False
    """Jobs may run as root where users have accounts."""
    quiet: bool = False
    log_level: str = "info"
    keep_days: float | None = None
    """How long ended jobs and events are kept; None: as long as the platform has room for."""
    restart_cost_s: float = 2.0
    """What policies are told that a restart costs."""
    resize_cost_s: float = 0.5
    elastic_fill: bool = True
    """Offer idle GPUs to elastic jobs under policies that decide at fixed sizes."""
    min_run_s: float | None = None
    """How long a job runs at least before a higher priority may preempt it; None: as `Settings` has it."""
    preempt_notice_s: float = 300.0
    """How long a job is spared that a preemption would cost more than `preempt_loss_s` of work; 0: not at all."""
    preempt_loss_s: float = 600.0
    learn: bool = False
    """Go on training policy dl2 on the jobs that end."""


def check_options(options: ServiceOptions) -> None:
    """Raise `InputError` for the first option that cannot be honoured."""
    if options.backend not in BACKENDS:
        raise InputError(f"unknown backend '{options.backend}'", "local, simulated or kubernetes", column="--backend")
    foreign = _ONLY_ONE_MACHINE if options.backend == "kubernetes" else _ONLY_KUBERNETES
    for field, flag in foreign.items():
        if getattr(options, field) not in (None, False):
            raise InputError(
                f"{flag} cannot be used with --backend {options.backend}", f"no {flag}", f"Leave {flag} out.",
                column=flag,
            )  # fmt: skip
    if options.throughputs is not None:
        if options.nodes is None:
            raise InputError(
                "--throughputs without --nodes", "emulated nodes: real devices have speeds of their own",
                "Declare nodes with --nodes, or leave --throughputs out.", column="--throughputs",
            )  # fmt: skip
        load_catalogue(options.throughputs)
    if options.policy is not None:
        create(options.policy)
    if options.bind_teams is not None:
        parse_bindings(options.bind_teams)
    parse_strategy(options.placement)
    if options.learn:
        from trainmaster.service.online_learning import check_learning

        check_learning(options.policy)
    if options.log_level not in ("debug", "info", "warning", "error"):
        raise InputError(
            f"unknown log level '{options.log_level}'", "debug, info, warning or error", column="--log-level"
        )
    _in_range("--round", options.round_s, 0.001, 1e9)
    _in_range("--min-run", options.min_run_s, 0, 1e9)
    _in_range("--preempt-notice", options.preempt_notice_s, 0, 1e9)
    _in_range("--preempt-loss", options.preempt_loss_s, 0, 1e9)
    _in_range("--keep-days", options.keep_days, 1e-9, 1e6)
    _in_range("--lease", options.lease_s, 2, 10 * 365 * 86_400)
    _in_range("--port", options.port, 0, 65_535)
    _in_range("--agent-port", options.agent_port, 1, 65_535)


def _in_range(flag: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise InputError(f"{value:g} is out of range", f"{low:g} to {high:g}", column=flag)
