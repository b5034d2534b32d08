"""`trainmaster up`: the service on this machine, in the foreground, until Ctrl-C or SIGTERM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.shared.output import one_message

if TYPE_CHECKING:
    from trainmaster.service.run import ServiceOptions


@one_message
def up(
    port: Annotated[int | None, typer.Option(help="Port to listen on; default 8642, or a free one. 0: any.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; others than loopback need tokens.")] = "127.0.0.1",
    home: Annotated[
        Path | None, typer.Option(help="Folder of the service; default $TRAINMASTER_HOME, then ~/.trainmaster.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Policy; default the one last in force, else fifo. `trainmaster policies` lists.")
    ] = None,
    nodes: Annotated[
        str | None, typer.Option(help="Declare emulated nodes, such as v100=2x2,k80=2x2; default: this machine.")
    ] = None,
    round_s: Annotated[float | None, typer.Option("--round", help="Length of a round in seconds.")] = None,
    placement: Annotated[str, typer.Option(help="pack, spread, first-fit or best-fit.")] = "pack",
    backend: Annotated[
        str,
        typer.Option(
            help="local; kubernetes: TrainingJobs of a cluster; simulated: jobs advance at their declared speed."
        ),
    ] = "local",
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Cluster of --backend kubernetes; default $KUBECONFIG, the pod's own, ~/.kube.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(help="Namespace of the service's state; default the pod's, else trainmaster-system.")
    ] = None,
    agent_host: Annotated[
        str, typer.Option(help="Address by which pods reach this process; default $POD_IP, or the one nodes see.")
    ] = "",
    agent_port: Annotated[int, typer.Option(help="Port at which trainers' launchers renew their leases.")] = 8643,
    lease: Annotated[
        float, typer.Option(help="Seconds for which a trainer goes on when it cannot be reached (kubernetes).")
    ] = 30.0,
    stop_jobs: Annotated[
        bool, typer.Option("--stop-jobs", help="Stop all jobs when the service stops; default: they go on.")
    ] = False,
    reset_nodes: Annotated[
        bool, typer.Option("--reset-nodes", help="Take other nodes than before: jobs are kept, and start again.")
    ] = False,
    learn: Annotated[
        bool, typer.Option("--learn", help="With policy dl2: go on training it on the jobs that end.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on the terminal.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    keep_days: Annotated[float, typer.Option(help="Days for which ended jobs and events are kept.")] = 30.0,
) -> None:
    """Start the service on this machine: REST interface, scheduler, store, and processes of jobs."""
    from trainmaster.client.address import home_folder
    from trainmaster.model.errors import InputError
    from trainmaster.service.control import Retention
    from trainmaster.service.run import Service, ServiceOptions

    if log_level not in ("debug", "info", "warning", "error"):
        raise InputError(f"'{log_level}'", "debug, info, warning or error", column="--log-level")
    if not keep_days > 0:
        raise InputError(f"{keep_days}", "a positive number of days", column="--keep-days")
    options = ServiceOptions(
        home=home_folder(home).absolute(), host=host, port=port, policy=policy, nodes=nodes, round_s=round_s,
        placement=placement, backend=backend, stop_jobs=stop_jobs, reset_nodes=reset_nodes, quiet=quiet,
        log_level=log_level, retention=Retention(days=keep_days), learn=learn, kubeconfig=kubeconfig,
        namespace=namespace, agent_host=agent_host, agent_port=agent_port, lease_s=lease,
    )  # fmt: skip
    if backend == "kubernetes":
        _up_on_kubernetes(options)
        return
    service = Service(options)

    def ready(address: str) -> None:
        if quiet:
            return
        speeds = " (emulated speeds)" if service.emulated else ""
        typer.echo(f"Trainmaster is up at {address}: {service.cluster.describe()}{speeds}")
        typer.echo(f"Home: {options.home}   API: {address}/docs   Stop: Ctrl-C")

    service.run(ready)


def _up_on_kubernetes(options: ServiceOptions) -> None:
    from trainmaster.model.errors import InputError

    if options.nodes is not None:
        raise InputError("a cluster has the nodes it has", "no --nodes with --backend kubernetes", column="--nodes")
    if not 2 <= options.lease_s <= 10 * 365 * 86400:
        raise InputError(f"{options.lease_s:g} s", "2 seconds to ten years", column="--lease")
    if not 0 < options.agent_port < 65536:
        raise InputError(f"{options.agent_port}", "1 to 65535", column="--agent-port")
    try:
        import aiohttp  # noqa: F401
        import orjson  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"the module {error.name} is missing", "the extra `kubernetes`",
            "Install it: pip install 'trainmaster[kubernetes]'", column="--backend",
        ) from None  # fmt: skip
    from trainmaster.service.kube import KubeService

    service = KubeService(options)

    def ready(address: str) -> None:
        if not options.quiet:
            typer.echo(f"Trainmaster is up at {address} for the cluster {service.config.server}")
            typer.echo(f"Home: {options.home}   API: {address}/docs   State: namespace {service.namespace}")

    service.run(ready)
