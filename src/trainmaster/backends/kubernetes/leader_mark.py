"""The label by which the Service finds the leader among the replicas."""

from __future__ import annotations

from trainmaster.backends.kubernetes import paths
from trainmaster.backends.kubernetes.client import ApiError, KubeClient, NotFound

LABEL = "trainmaster.dev/leader"


async def mark_leader(client: KubeClient, namespace: str, pod_name: str) -> None:
    """Put it on our own pod and take it from any other; a leader that is gone cannot do that itself."""
    await client.patch(paths.pod(namespace, pod_name), _labels("true"))
    marked = await client.get(paths.pods(namespace), labelSelector=f"{LABEL}=true")
    for pod in marked.get("items") or ():
        if pod["metadata"]["name"] != pod_name:
            try:
                await client.patch(paths.pod(namespace, pod["metadata"]["name"]), _labels(None))
            except NotFound:
                continue


async def unmark(client: KubeClient, namespace: str, pod_name: str) -> None:
    """Best effort: the next leader takes it away otherwise."""
    try:
        await client.patch(paths.pod(namespace, pod_name), _labels(None), patience_s=2.0)
    except ApiError:
        return


def _labels(value: str | None) -> dict[str, dict[str, dict[str, str | None]]]:
    return {"metadata": {"labels": {LABEL: value}}}
