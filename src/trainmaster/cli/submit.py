"""`trainmaster submit`: hand a job to the service and print its id."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from trainmaster.cli.job_options import JobOptions, with_job_options
from trainmaster.cli.output import HomeOption, Output, check_output, one_message, to_json
from trainmaster.cli.request import Request, build, with_environment
from trainmaster.client.client import Client
from trainmaster.model.errors import InputError


@one_message
@with_job_options
def submit(
    options: JobOptions,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended; exit with its code.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Do not submit: say when it would start and finish.")
    ] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of job files.")] = False,
    home: HomeOption = None,
    output: Output = "table",
) -> None:
    """Submit a job and print its id."""
    check_output(output)
    if schema:
        _print_schema()
        return
    request = build(options, time.time())
    if dry_run and wait:
        raise InputError("--wait has nothing to wait for", "--dry-run or --wait", column="--dry-run")
    with Client.find(home) as client:
        if dry_run:
            from trainmaster.cli.preview import show

            show(client, in_namespace(client, request), output)
            return
        accepted = hand_in(client, request, options.bare_env)
        _print(accepted, output)
        if wait:
            from trainmaster.cli.following import wait_for_all

            raise typer.Exit(wait_for_all(client, accepted["ids"]))


def in_namespace(client: Client, request: Request) -> Request:
    """Through the API server of a cluster: in the namespace of the kubeconfig, unless one is given."""
    if client.address.through is None or request.body.get("namespace"):
        return request
    return request._replace(body={**request.body, "namespace": client.address.through.namespace})


def hand_in(client: Client, request: Request, bare_env: bool) -> dict[str, Any]:
    """Submit; a service on this machine also learns which `python` its user means."""
    body = in_namespace(client, request).body
    if client.address.through is None and client.address.local and not bare_env and not body.get("image"):
        body = with_environment(body)
    try:
        return client.submit(body)
    except InputError as fault:
        raise request.blame(fault) from None


def _print(accepted: dict[str, Any], output: str) -> None:
    if output == "json":
        typer.echo(to_json(accepted), nl=False)
    else:
        for job in accepted["ids"]:
            typer.echo(job)


def _print_schema() -> None:
    from trainmaster.jobspec.schema import json_schema

    typer.echo(to_json(json_schema()), nl=False)
