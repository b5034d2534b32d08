"""The service in a cluster, reached through the cluster's API server: `TRAINMASTER_URL=kube:[CONTEXT][/NAMESPACE]`.

No port needs to be opened: the API server passes requests on to the Service (rights: `get` and `create` on
`services/proxy`). The user is known by the token of the kubeconfig, or by TRAINMASTER_TOKEN.
"""

from __future__ import annotations

import os
from typing import Any

from trainmaster.backends.kubernetes.api.config import load_config
from trainmaster.client.address import Address
from trainmaster.client.errors import NoService
from trainmaster.model.errors import InputError, TrainmasterError

NAMESPACE = "trainmaster-system"
SERVICE = "trainmaster"
PORT = 8642


def kube_address(url: str) -> Address:
    context, _, rest = url.removeprefix("kube:").strip("/").partition("/")
    namespace, _, service = rest.partition("/")
    config = load_config(None, context or None)
    token = os.environ.get("TRAINMASTER_TOKEN") or config.bearer()
    if not token:
        raise InputError(
            "this kubeconfig has no token: the service cannot tell who you are by a certificate",
            "a token in the kubeconfig or in TRAINMASTER_TOKEN",
            "Make one: export TRAINMASTER_TOKEN=$(kubectl create token NAME).",
            column="TRAINMASTER_TOKEN",
        )
    where = f"namespaces/{namespace or NAMESPACE}/services/http:{service or SERVICE}:{PORT}/proxy"
    return Address(f"{config.server}/api/v1/{where}", token, f"TRAINMASTER_URL={url}", config)


def passing_fault(status: int, body: Any, address: Address) -> TrainmasterError:
    """What the API server said when it did not pass a request on."""
    told = body.get("message", "") if isinstance(body, dict) else ""
    if status in (401, 403):
        remedy = "ask for the rights get and create on services/proxy in the service's namespace"
        return TrainmasterError(f"the API server does not pass requests on for you: {told or status}; {remedy}")
    if status in (404, 502, 503, 504):
        return NoService(f"no service behind {address.source}: {told or status}; is Trainmaster installed and running?")
    return TrainmasterError(f"the API server answers {status}: {told}")
