"""`trainmaster kube`: what a cluster needs to run Trainmaster."""

from __future__ import annotations

import json
import re
from typing import Annotated

import typer

from trainmaster.cli.shared.output import one_message

app = typer.Typer(help="Install on Kubernetes.", no_args_is_help=True, pretty_exceptions_enable=False)
_NAME = re.compile(r"^[a-z]([-a-z0-9]{0,51}[a-z0-9])?$")
_FORMATS = ("yaml", "json")


@app.callback()
def kube() -> None:
    """Install on Kubernetes."""


@app.command()
@one_message
def manifests(
    namespace: Annotated[str, typer.Option(help="Namespace of the service.")] = "trainmaster-system",
    image: Annotated[str, typer.Option(help="Image of the service.")] = "ghcr.io/trainmaster/trainmaster:latest",
    replicas: Annotated[int, typer.Option(help="Replicas; one leads, the others wait.")] = 2,
    policy: Annotated[str, typer.Option(help="Policy; `trainmaster policies` lists them.")] = "fifo",
    memory: Annotated[str, typer.Option(help="Memory of a replica.")] = "1Gi",
    cpu: Annotated[str, typer.Option(help="CPU that a replica asks for.")] = "500m",
    service_monitor: Annotated[bool, typer.Option("--service-monitor", help="Add a ServiceMonitor.")] = False,
    only_crd: Annotated[bool, typer.Option("--only-crd", help="Only the TrainingJob resource: for upgrades.")] = False,
    output: Annotated[str, typer.Option("-o", "--output", help="yaml or json.")] = "yaml",
) -> None:
    """Print CRD, RBAC, Deployment, Service and disruption budget, for `kubectl apply -f -`."""
    import yaml

    from trainmaster.backends.kubernetes.resources.crd import crd
    from trainmaster.backends.kubernetes.resources.manifests import InstallOptions
    from trainmaster.backends.kubernetes.resources.manifests import manifests as made
    from trainmaster.backends.kubernetes.resources.quantity import QuantityError, parse_quantity
    from trainmaster.model.errors import InputError
    from trainmaster.policies.registry import create

    if output not in _FORMATS:
        raise InputError(f"invalid format '{output}'", "yaml or json", column="--output")
    if not _NAME.match(namespace):
        raise InputError(
            f"invalid namespace '{namespace}'", "a lower-case name of letters, digits and '-'", column="--namespace"
        )
    if replicas < 1:
        raise InputError(f"invalid number of replicas {replicas}", "at least 1", column="--replicas")
    if not image or any(letter.isspace() for letter in image):
        raise InputError(f"invalid image '{image}'", "the name of an image", column="--image")
    for option, value in (("--memory", memory), ("--cpu", cpu)):
        try:
            parse_quantity(value)
        except QuantityError as error:
            raise InputError(str(error), "a quantity such as 500m or 2Gi", column=option) from None
    create(policy)  # says what is wrong with the name
    options = InstallOptions(
        namespace=namespace,
        image=image,
        replicas=replicas,
        policy=policy,
        memory=memory,
        cpu=cpu,
        service_monitor=service_monitor,
    )
    objects = [crd()] if only_crd else made(options)
    if output == "json":
        typer.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2))
        return
    typer.echo(yaml.safe_dump_all(objects, sort_keys=False, width=120).rstrip("\n"))
