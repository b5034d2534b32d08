"""Which nodes a template may be placed on: selector, required affinity, taints, and the GPU resource it asks for.

Templates that ask for the same have one set, named by what they ask for, so that a restart finds the same names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from trainmaster.backends.kubernetes.nodes.cluster_watch import ClusterWatch
from trainmaster.backends.kubernetes.nodes.matching import why_not
from trainmaster.model import event as ev

ASKED = ("nodeSelector", "affinity", "tolerations")


class NodeSets:
    """Belongs to the loop of the watch."""

    def __init__(self, watch: ClusterWatch) -> None:
        self._watch = watch
        self._asked: dict[str, tuple[dict[str, Any], str]] = {}
        self._told: dict[str, frozenset[int]] = {}

    def name_for(self, job: Mapping[str, Any]) -> str:
        """The set of a TrainingJob's workers (and servers: they follow the same template or are as free)."""
        spec = job.get("spec") or {}
        pod = (spec.get("template") or {}).get("spec") or {}
        asked = {name: pod[name] for name in ASKED if pod.get(name)}
        affinity = asked.pop("affinity", {}).get("nodeAffinity") or {}
        required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
        if required:
            asked["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        resource = "" if spec.get("gpusPerWorker") == 0 else str(spec.get("gpuResource") or "nvidia.com/gpu")
        text = json.dumps([asked, resource], sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._asked.setdefault(name, (asked, resource))
        return name

    def asked(self, name: str) -> dict[str, Any] | None:
        """What the pods of a set demand of nodes: selector, required node affinity, tolerations."""
        found = self._asked.get(name)
        return None if found is None else found[0]

    def news(self) -> list[ev.NodeSet]:
        """Sets that are new or have changed since this was last asked."""
        found = []
        for name, (asked, resource) in self._asked.items():
            nodes = self._members(asked, resource)
            if self._told.get(name) != nodes:
                self._told[name] = nodes
                found.append(ev.NodeSet(name, nodes))
        return found

    def new(self) -> list[ev.NodeSet]:
        """Only those that nobody was told of."""
        if len(self._told) == len(self._asked):
            return []
        return self.news()

    def _members(self, asked: dict[str, Any], resource: str) -> frozenset[int]:
        watch, members = self._watch, []
        for (_, name), node in watch.nodes.objects.items():
            index = watch.index_of(name)
            if index is None:
                continue
            facts = watch.facts.get(name)
            if resource and facts is not None and facts.gpu_resource not in ("", resource):
                continue
            if why_not(asked, node, lasting=True) is None:
                members.append(index)
        return frozenset(members)
