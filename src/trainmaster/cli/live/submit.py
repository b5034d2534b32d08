"""`trainmaster submit`: hand a job to the service and print its id."""

from __future__ import annotations

import time
from contextlib import nullcontext, suppress
from typing import Any

import click

from trainmaster.cli.live.control import preemptions_told
from trainmaster.cli.live.submission.job_options import JobOptions, PanelCommand, with_job_options
from trainmaster.cli.live.submission.program import check_program
from trainmaster.cli.live.submission.request import Request, build, with_environment
from trainmaster.cli.shared.command import command
from trainmaster.cli.shared.output import to_json
from trainmaster.client.client import Client, job_path
from trainmaster.model.errors import InputError, TrainmasterError


def _show(accepted: dict[str, Any]) -> None:
    for job in accepted["ids"]:
        click.echo(job)


@command(_show, cls=PanelCommand)
@with_job_options
@click.option("--wait", is_flag=True, help="Wait until it has ended; exit with its code.")
@click.option("--dry-run", is_flag=True, help="Do not submit: say when it would start and finish.")
@click.option("--schema", is_flag=True, help="Print the JSON schema of job files.")
def submit(client: Client, options: JobOptions, wait: bool, dry_run: bool, schema: bool, output: str) -> Any:
    """Submit a job and print its id."""
    if schema:
        from trainmaster.jobspec.schema import json_schema

        click.echo(to_json(json_schema()), nl=False)
        return None
    request = build(options, time.time())
    if dry_run and wait:
        raise InputError("--wait has nothing to wait for", "--dry-run or --wait", column="--dry-run")
    if dry_run:
        from trainmaster.cli.live.submission.preview import show

        show(client, in_namespace(client, request), output)
        return None
    with preemptions_told(client) if request.body.get("priority", 0) > 0 else nullcontext():
        accepted = hand_in(client, request, options.bare_env)
    if request.body.get("deadline_s") and output != "json":
        _tell_answer(client, accepted["id"])
    if not wait:
        return accepted
    from trainmaster.cli.live.following import wait_for_all

    click.echo(to_json(accepted), nl=False) if output == "json" else _show(accepted)
    raise SystemExit(wait_for_all(client, accepted["ids"]))


def _tell_answer(client: Client, job: str) -> None:
    """What is known of the deadline so far; apart from the ids, which scripts read."""
    with suppress(TrainmasterError):  # the job is there: whoever wants the answer can ask for it again
        view = client.get(job_path(job))
        rejected = view["reason"] if view["state"] == "rejected" else ""
        if told := (view.get("deadline_answer") or {}).get("text") or rejected:
            click.echo(f"{job}: {told}", err=True)


def in_namespace(client: Client, request: Request) -> Request:
    """Through the API server of a cluster: in the namespace of the kubeconfig, unless one is given."""
    if client.address.through is None or request.body.get("namespace"):
        return request
    return request._replace(body={**request.body, "namespace": client.address.through.namespace})


def hand_in(client: Client, request: Request, bare_env: bool) -> dict[str, Any]:
    """Submit; a service on this machine also learns which `python` its user means."""
    body = in_namespace(client, request).body
    if body.get("snapshot") and client.address.through is None and not client.address.local:
        told = f"{client.address.url} is on another machine, which does not have this folder"
        raise InputError(told, "a service on this machine", column="--snapshot")
    if client.address.through is None and client.address.local and not body.get("image"):
        body = body if bare_env else with_environment(body)
        check_program(body)
    try:
        return client.submit(body)
    except InputError as fault:
        raise request.blame(fault) from None
