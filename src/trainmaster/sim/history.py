"""Which devices each job held, and when: kept from the commands and reports of a run, only when asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from trainmaster.model import event as ev
from trainmaster.model.allocation import Allocation
from trainmaster.model.cluster import Cluster
from trainmaster.model.command import Command, Launch, Resize
from trainmaster.model.units import GPU_MILLI, MS_PER_S

if TYPE_CHECKING:
    import polars as pl

_OVER = (ev.Exited, ev.Stopped, ev.StartFailed)


class AllocationHistory:
    """Open holdings by job, closed ones as rows. A job that changes size closes one and opens another."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._open: dict[str, tuple[int, int, Allocation]] = {}
        self._closed: list[tuple[str, int, int, Allocation]] = []

    def reported(self, now_ms: int, events: Iterable[ev.Event]) -> None:
        for event in events:
            if isinstance(event, _OVER):
                held = self._open.get(event.job_id)
                if held is not None and held[1] == event.generation:
                    self._close(event.job_id, now_ms)

    def commanded(self, now_ms: int, command: Command) -> None:
        if isinstance(command, Launch | Resize):
            held = self._open.get(command.job_id)
            if held is not None:
                if held[1:] == (command.generation, command.allocation):
                    return  # a command sent again
                self._close(command.job_id, now_ms)
            self._open[command.job_id] = (now_ms, command.generation, command.allocation)

    def _close(self, job_id: str, now_ms: int) -> None:
        start_ms, _, allocation = self._open.pop(job_id)
        if now_ms > start_ms:
            self._closed.append((job_id, start_ms, now_ms, allocation))

    def table(self, end_ms: int) -> pl.DataFrame:
        """A row per job, node and uninterrupted holding, in order of start."""
        import polars as pl  # large, and most runs keep no history

        for job_id in sorted(self._open):
            self._close(job_id, end_ms)
        rows = []
        for job_id, start_ms, stop_ms, allocation in sorted(self._closed, key=lambda c: (c[1], c[0])):
            gpus = allocation.gpu_milli / GPU_MILLI
            for part in allocation.parts:
                node = self.cluster.nodes[part.node]
                if part.devices:
                    rows.append(
                        (
                            job_id,
                            part.node,
                            node.id,
                            node.accelerator,
                            list(part.devices),
                            gpus,
                            start_ms / MS_PER_S,
                            stop_ms / MS_PER_S,
                        )
                    )
        schema = {
            "job_id": pl.String(),
            "node": pl.Int32(),
            "node_id": pl.String(),
            "accelerator": pl.String(),
            "devices": pl.List(pl.Int32()),
            "job_gpus": pl.Float64(),
            "start_s": pl.Float64(),
            "end_s": pl.Float64(),
        }
        return pl.DataFrame(rows, schema=schema, orient="row")
