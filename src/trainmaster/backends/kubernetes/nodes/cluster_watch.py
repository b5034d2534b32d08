"""Watches nodes and pods, and tells the backend what of it concerns us: our pods, nodes lost and found, room taken.

It lives as long as the service, whether that leads or not, so that a new leader finds everything at hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from trainmaster.backends.kubernetes.api import paths
from trainmaster.backends.kubernetes.api.client import KubeClient, Object
from trainmaster.backends.kubernetes.api.reflector import DELETED, Change, Reflector
from trainmaster.backends.kubernetes.attempts import pod_objects
from trainmaster.backends.kubernetes.attempts.observations import SCHEDULER
from trainmaster.backends.kubernetes.nodes import cluster_model as n
from trainmaster.backends.kubernetes.set_aside import SetAside
from trainmaster.model.cluster import Cluster, Node

FLUSH_S = 0.05
"""Changes of what others use are gathered for so long."""
DISTRUST_S = 60.0
"""A node that went silent gets nothing new for so long, unless its kubelet speaks, or the cluster says that it was lost
and is back."""
HEARD_EVERY_S = 1.0
"""A node that the cluster calls not ready while trainers there renew their leases is looked at so often."""
NOBODY = Node("(none)", n.NO_GPU, 0, 0, 0)
"""Stands in where a cluster has no node at all."""


class Listener(Protocol):
    def pod_changed(self, pod: Object, gone: bool) -> None: ...

    def heard_nodes(self) -> frozenset[str]:
        """Nodes with trainers that renew their leases, whatever the cluster says of them."""
        ...

    def nodes_unready(self, nodes: Iterable[str]) -> None:
        """Their kubelets are silent, their trainers are heard: they go on."""
        ...

    def node_lost(self, node: str, index: int) -> None: ...

    def node_ready(self, node: str, index: int) -> None: ...

    def node_used(self, index: int, amounts: n.Amounts) -> None: ...


class ClusterWatch:
    def __init__(
        self,
        client: KubeClient,
        *,
        on_new_nodes: Callable[[], None] = lambda: None,
        select: str | None = None,
        gpu_resources: Iterable[str] = n.GPU_RESOURCES,
    ) -> None:
        """`on_new_nodes` is told when nodes came that are not listed, or grew. `select`: labels of nodes to use."""
        self._resources = tuple(gpu_resources)
        self._on_new_nodes = on_new_nodes
        self.nodes = Reflector(client, paths.nodes(), self._node_changed, labels=select, trim=_trim_node)
        self.pods = Reflector(client, paths.pods(), self._pod_changed, trim=pod_objects.trimmed)
        self.facts: dict[str, n.NodeFacts] = {}
        self.usage = n.Usage(self._resources)
        self.cluster = Cluster((NOBODY,), {})
        self._index: dict[str, int] = {}
        self._told: dict[str, bool] = {}
        """Whether the listener believes that a node is there."""
        self._unready: set[str] = set()
        """Nodes that are there by their trainers' word alone."""
        self._listening: asyncio.TimerHandle | None = None
        self._told_used: dict[str, n.Amounts] = {}
        """What the listener believes is withheld of a node; a node that is not here is told of in any case."""
        self._dirty: set[str] = set()
        self._distrusted: dict[str, asyncio.TimerHandle] = {}
        self.listener: Listener | None = None
        self.faults = SetAside()
        self.on_nodes: Callable[[], None] | None = None
        """Is told when labels, taints or the list of nodes changed."""
        self.foreign: Callable[[Object, bool], None] | None = None
        """Is told of pods of other controllers that name our scheduler."""

    async def run(self) -> None:
        await asyncio.gather(self.nodes.run(), self.pods.run())

    async def refresh(self) -> None:
        """Know all that is there by now: see `Reflector.refresh`."""
        await asyncio.gather(self.nodes.refresh(), self.pods.refresh())

    # -- for the backend -------------------------------------------------------------------------------

    def name_of(self, index: int) -> str:
        return self.cluster.nodes[index].id

    def index_of(self, name: str) -> int | None:
        return self._index.get(name)

    def is_ready(self, name: str) -> bool:
        facts = self.facts.get(name)
        return facts is not None and facts.ready

    def is_gone(self, name: str) -> bool:
        """There is no such node (any more); may be asked by any thread."""
        return name not in self.facts

    def ready_indices(self) -> frozenset[int]:
        return frozenset(index for name, index in self._index.items() if self._told.get(name))

    def distrust(self, name: str) -> None:
        """A trainer there is silent, though the cluster calls the node ready: it is the last to learn of a cut cable.
        What runs there goes on; nothing is started there for a while."""
        if name in self._distrusted:
            self._distrusted[name].cancel()
        self._distrusted[name] = asyncio.get_running_loop().call_later(DISTRUST_S, self._trust, name)
        self._tell_used(name)

    def _trust(self, name: str) -> None:
        handle = self._distrusted.pop(name, None)
        if handle is not None:
            handle.cancel()
            self._touch(name)

    def our_pods(self) -> Iterator[Object]:
        yield from [pod for pod in self.pods.objects.values() if pod_objects.is_ours(pod)]

    def local_address(self) -> str:
        """The address of this machine by which nodes are reached, and so, mostly, by which pods reach it."""
        for node in self.nodes.objects.values():
            for address in (node.get("status") or {}).get("addresses") or ():
                if address.get("type") == "InternalIP":
                    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
                        probe.connect((address["address"], 9))
                        return str(probe.getsockname()[0])
        return ""

    def foreign_pods(self) -> list[Object]:
        """Pods of other controllers that name our scheduler."""
        return [pod for pod in self.pods.objects.values() if _is_foreign(pod)]

    # -- the list of nodes -------------------------------------------------------------------------------

    def present(self, listed: Iterable[Node] = (), held: Collection[str] = ()) -> tuple[Node, ...]:
        """The nodes to go on with: those listed before keep their place, new ones follow by name. `held`: something is,
        or may be, on them; with another type (a label was changed) they would be taken for others and it for gone."""
        before = [node for node in listed if node.id != NOBODY.id]
        kept = [self._grown(node, node.id in held) if node.id in self.facts else node for node in before]
        known = {node.id for node in before}
        new = [self.facts[name].node for name in sorted(self.facts) if name not in known]
        return tuple(kept + new) or (NOBODY,)

    def _grown(self, listed: Node, held: bool) -> Node:
        now = self.facts[listed.id].node
        return n.merged(listed, replace(now, accelerator=listed.accelerator) if held else now)

    def outgrown(self) -> bool:
        """Whether there are nodes, or more of a node, than the list has."""
        return self.present(self.cluster.nodes) != self.cluster.nodes

    def list_nodes(self, cluster: Cluster) -> None:
        """These are the nodes from now on, by their index."""
        self.cluster = cluster
        self._index = {node.id: k for k, node in enumerate(cluster.nodes) if node.id != NOBODY.id}
        for name in self._index:
            self._touch(name)
        if self.on_nodes is not None:
            self.on_nodes()

    def tell_all(self) -> None:
        """Tell the listener of every node, as if nothing had been told before: also that nothing is withheld, for the
        engine may have learned otherwise from an earlier leader."""
        self._told, self._told_used, self._unready = {}, {}, set()
        for name in self._index:
            self._touch(name)

    # -- changes -----------------------------------------------------------------------------------------

    def _node_changed(self, kind: Change, thing: Object, before: Object | None) -> None:
        name = thing["metadata"]["name"]
        if self.on_nodes is not None and (before is None or _placing(before) != _placing(thing)):
            self.on_nodes()
        if kind == DELETED:
            self.facts.pop(name, None)
        else:
            facts = n.read_node(thing, self._resources)
            if self.facts.get(name) == facts:
                return
            self.facts[name] = facts
            listed = self.cluster.nodes[self._index[name]] if name in self._index else None
            if listed is None or n.merged(listed, facts.node) != listed:
                self._on_new_nodes()
        self._touch(name)

    def _pod_changed(self, kind: Change, pod: Object, before: Object | None) -> None:
        gone = kind == DELETED
        if self._distrusted and not gone and before is not None and _containers(before) != _containers(pod):
            self._trust(str(pod["spec"].get("nodeName")))  # nobody but its kubelet writes that
        if before is not None and pod_objects.is_ours(before) and before["metadata"]["uid"] == pod["metadata"]["uid"]:
            # What it was made with says whose it is, also when somebody has taken off its owner or a label.
            pod["metadata"].update({key: before["metadata"][key] for key in pod_objects.IDENTITY})
        if pod_objects.is_ours(pod):
            if self.listener is not None:
                self.listener.pod_changed(pod, gone)
            return
        if self.foreign is not None and _is_foreign(pod):
            self.foreign(pod, gone)
        node = self.usage.pod_changed(pod, gone)
        if node is not None:
            self._touch(node)

    def _touch(self, name: str) -> None:
        if not self._dirty:
            asyncio.get_running_loop().call_later(FLUSH_S, self._flush)
        self._dirty.add(name)

    def _flush(self) -> None:
        dirty, self._dirty = sorted(self._dirty), set()
        if self.listener is None:
            return
        silent = [name for name in dirty if name in self._index and not self.is_ready(name)]
        heard = self._heard_of(silent)
        for name in dirty:
            index = self._index.get(name)
            if index is not None:
                with self.faults.alone(f"news of node {name}"):
                    self._tell_there(self.listener, name, index, self.is_ready(name) or name in heard)
                    self._tell_used(name)

    def _tell_there(self, listener: Listener, name: str, index: int, there: bool) -> None:
        if there == self._told.get(name):
            return
        self._told[name] = there
        if there:
            self._trust(name)
            listener.node_ready(name, index)
        else:
            listener.node_lost(name, index)

    def _heard_of(self, silent: list[str]) -> set[str]:
        """Which of these nodes, none of them ready, are there all the same. While the API server is away no kubelet can
        report, and the cluster calls all nodes lost: no reason to end what goes on well. A node that was given up is
        not among them, since its trainers are not renewed any more."""
        assert self.listener is not None
        possible = {name for name in silent if self._told.get(name, True)}
        heard = possible & self.listener.heard_nodes() if possible else set()
        new = sorted(heard - self._unready)
        self._unready = {name for name in self._unready if not self.is_ready(name)} - set(silent) | heard
        if new:
            self.listener.nodes_unready(new)
        if self._unready and self._listening is None:
            self._listening = asyncio.get_running_loop().call_later(HEARD_EVERY_S, self._listen_again)
        return heard

    def _listen_again(self) -> None:
        self._listening = None
        for name in self._unready:
            self._touch(name)

    def _tell_used(self, name: str) -> None:
        index = self._index.get(name)
        if index is None or self.listener is None:
            return
        shunned = name in self._distrusted or name in self._unready
        facts = None if shunned else self.facts.get(name)
        used = n.unavailable(facts, self.cluster.nodes[index], self.usage.of(name))
        if used != self._told_used.get(name):
            self._told_used[name] = used
            self.listener.node_used(index, used)


def _is_foreign(pod: Object) -> bool:
    return pod["spec"].get("schedulerName") == SCHEDULER and not pod_objects.is_ours(pod)


def _containers(pod: Object) -> Object | None:
    return (pod.get("status") or {}).get("containerStatuses")


def _placing(node: Object) -> tuple[Object | None, Object | None, bool]:
    """What decides which pods a node accepts. A cordon counts before some controller has made a taint of it."""
    spec = node["spec"]
    return node["metadata"].get("labels"), spec.get("taints"), bool(spec.get("unschedulable"))


_NODE_STATUS = ("allocatable", "capacity", "conditions", "addresses")


def _trim_node(thing: Object) -> Object:
    status = thing.get("status") or {}
    meta = thing["metadata"]
    return {
        "metadata": {key: meta[key] for key in ("name", "uid", "resourceVersion", "labels") if key in meta},
        "spec": {key: value for key, value in (thing.get("spec") or {}).items() if key in ("taints", "unschedulable")},
        "status": {key: status[key] for key in _NODE_STATUS if key in status},
    }
