"""Jobs that share an emulated slot slow each other, as two programs on one GPU do.

Nothing on the machine makes them: each would have its cores. So what each keeps of its speed is written into a file of
its attempt's folder, and its members, who know the file by `TRAINMASTER_EMULATED_SHARING`, go by it from then on.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainmaster.backends.local.run_folder import RunFolder, read_json
from trainmaster.model.allocation import Allocation
from trainmaster.model.cluster import Cluster
from trainmaster.model.foreign import is_whole
from trainmaster.model.job import JobSpec

KeptBeside = Callable[[JobSpec, JobSpec, str], float]
"""The part of its speed that the first job keeps beside the second one on a GPU type: the truth of the emulation."""


@dataclass
class _Place:
    folder: RunFolder
    spec: JobSpec
    gpu_type: str
    devices: frozenset[tuple[int, int]]
    """With their nodes, if it has less of them than it asked for; else none: then it gets what was measured."""
    keeps: float = 0.0
    """As its file says; 0: there is none yet."""


class SharedSlots:
    """Told of every attempt that begins, changes its devices or ends."""

    def __init__(self, cluster: Cluster, kept_beside: KeptBeside) -> None:
        self._cluster = cluster
        self._kept_beside = kept_beside
        self._places: dict[str, _Place] = {}

    def placed(self, folder: RunFolder, spec: JobSpec, allocation: Allocation) -> None:
        less = allocation.share_milli < spec.worker.share_milli
        devices = frozenset((part.node, device) for part in allocation.parts for device in part.devices)
        gpu_type = self._cluster.types[max(allocation.accelerator, 0)]
        self._places[spec.id] = _Place(folder, spec, gpu_type, devices if less else frozenset())
        self._write_changes()

    def adopted(self, folder: RunFolder, spec: JobSpec) -> None:
        """An attempt of an earlier process of the service: its file says where it is."""
        told = read_json(folder.sharing) or {}
        devices = [item for item in told.get("devices") or () if isinstance(item, list) and len(item) == 2]
        found = frozenset((node, device) for node, device in devices if is_whole(node, 0) and is_whole(device, 0))
        if all(node < len(self._cluster.nodes) for node, _ in found):
            gpu_type = self._cluster.nodes[min(found)[0]].accelerator if found else ""
            self._places[spec.id] = _Place(folder, spec, gpu_type, found)
            self._write_changes()

    def ended(self, job_id: str) -> None:
        if self._places.pop(job_id, None) is not None:
            self._write_changes()

    def _write_changes(self) -> None:
        for job_id, place in sorted(self._places.items()):
            keeps = 1.0
            for other_id, other in sorted(self._places.items()):
                if other_id != job_id and place.devices & other.devices:
                    keeps *= self._kept_beside(place.spec, other.spec, place.gpu_type)
            if keeps != place.keeps:
                with contextlib.suppress(OSError):  # a full disk must not hold up a job's end; tried at every change
                    _write(place.folder.sharing, {"devices": sorted(place.devices), "keeps": keeps})
                    place.keeps = keeps


def _write(path: Path, data: dict[str, object]) -> None:
    """Readable for members under accounts of their own, to whom the folder is open."""
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(json.dumps(data))
    temporary.chmod(0o644)
    temporary.replace(path)
