"""`trainmaster up`: the service on this machine, in the foreground, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from trainmaster.cli.shared.output import one_message


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
        str | None,
        typer.Option(help="Declare emulated nodes, such as v100:2x4 (two nodes of 4); default: this machine."),
    ] = None,
    throughputs: Annotated[
        str | None,
        typer.Option(help="With --nodes: throughput table by whose pairs jobs on one device slow each other."),
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
        str | None, typer.Option(help="Address by which pods reach this process; default $POD_IP, or as nodes see it.")
    ] = None,
    agent_port: Annotated[
        int | None, typer.Option(help="Port at which launchers renew their leases (kubernetes); default 8643.")
    ] = None,
    lease: Annotated[
        float | None,
        typer.Option(help="Seconds for which a trainer goes on when it cannot be reached (kubernetes); default 30."),
    ] = None,
    stop_jobs: Annotated[
        bool, typer.Option("--stop-jobs", help="Stop all jobs when the service stops; default: they go on.")
    ] = False,
    reset_nodes: Annotated[
        bool, typer.Option("--reset-nodes", help="Take other nodes than before: jobs are kept, and start again.")
    ] = False,
    elastic_fill: Annotated[
        bool,
        typer.Option(
            "--elastic-fill/--no-elastic-fill",
            help="Under fifo, sjf, srtf, las and tiresias: offer idle GPUs to elastic jobs, take them back for others.",
        ),
    ] = True,
    min_run_s: Annotated[
        float | None,
        typer.Option("--min-run", help="Seconds that a job runs before a higher priority may preempt it; default 120."),
    ] = None,
    preempt_notice_s: Annotated[
        float,
        typer.Option(
            "--preempt-notice", help="Seconds that a job is spared, after a notice, that would lose much work."
        ),
    ] = 300.0,
    preempt_loss_s: Annotated[
        float, typer.Option("--preempt-loss", help="Seconds of unsaved work from which on a preemption needs a notice.")
    ] = 600.0,
    learn: Annotated[
        bool, typer.Option("--learn", help="With policy dl2: go on training it on the jobs that end.")
    ] = False,
    bind_teams: Annotated[
        str | None,
        typer.Option(
            "--bind-teams",
            help="Kubernetes: jobs count for teams of their namespace: `own`, or NAMESPACE=TEAM+TEAM,NAMESPACE=TEAM.",
        ),
    ] = None,
    trust_users: Annotated[
        bool,
        typer.Option("--trust-users", help="Accept tokens of further users: their jobs can read each other's files."),
    ] = False,
    root_jobs: Annotated[
        bool, typer.Option("--root-jobs", help="Accept accounts of root in the file `accounts`.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on the terminal.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    keep_days: Annotated[
        float | None,
        typer.Option(help="Days for which ended jobs, logs and checkpoints are kept; default 30, on a cluster 14."),
    ] = None,
) -> None:
    """Start the service on this machine: REST interface, scheduler, store, and processes of jobs."""
    from trainmaster.client.address import home_folder
    from trainmaster.service.local.trust import users_among, warnings
    from trainmaster.service.options import ServiceOptions
    from trainmaster.service.service import Service

    options = ServiceOptions(
        home=home_folder(home).absolute(), host=host, port=port, policy=policy, nodes=nodes, throughputs=throughputs,
        round_s=round_s, placement=placement, backend=backend, stop_jobs=stop_jobs, reset_nodes=reset_nodes,
        quiet=quiet, trust_users=trust_users, root_jobs=root_jobs, elastic_fill=elastic_fill, min_run_s=min_run_s,
        preempt_notice_s=preempt_notice_s, preempt_loss_s=preempt_loss_s,
        log_level=log_level, keep_days=keep_days, learn=learn, kubeconfig=kubeconfig, namespace=namespace,
        agent_host=agent_host, agent_port=agent_port, lease_s=lease, bind_teams=bind_teams,
    )  # fmt: skip
    service = Service(options)

    def ready(address: str) -> None:
        if not quiet:
            typer.echo(f"Trainmaster is up at {address}: {service.platform.describe()}")
            typer.echo(f"Home: {options.home}   API: {address}/docs   Stop: Ctrl-C")
        if backend == "local":
            users = users_among(who for _, who in service.home.principals())
            for warning in warnings(os.geteuid(), users, service.home.accounts() is not None):
                typer.echo(f"Warning: {warning}.", err=True)

    service.run(ready)
