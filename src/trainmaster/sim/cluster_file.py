"""`--cluster`: a short form such as `v100:2x4,k80:1x8`, or a file that lists nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import yaml

from trainmaster.estimate.prices import PRICE_PER_GPU_HOUR
from trainmaster.model.cluster import Cluster, Node, cluster_of, parse_cluster
from trainmaster.model.errors import InputError
from trainmaster.model.foreign import is_finite
from trainmaster.model.units import UNLIMITED
from trainmaster.policies.gavel.problem import TEAM_POLICIES
from trainmaster.traces.trace import companion_from_table

_DOCUMENTS = (".yaml", ".yml", ".json")
_KEYS = {"id", "accelerator", "gpus", "cpus", "mem_gib", "rack", "count"}


def read_cluster(text: str) -> Cluster:
    """A file when it looks like one, else the short form. Prices default to rough public figures.

    A file is YAML or JSON: `nodes: [{accelerator: v100, gpus: 8, cpus: 64, mem_gib: 512, rack: r1, count: 4}]`
    and optionally `prices: {v100: 2.48}` and `teams` (`read_teams`); or a `nodes` table (CSV) as traces have it.
    """
    path = Path(text)
    if ("=" in text or ":" in text) and not path.exists():
        return parse_cluster(text, PRICE_PER_GPU_HOUR)
    if not path.is_file():
        raise InputError(f"cluster '{text}' is neither a description nor a file", "TYPE:NODESxGPUS,... or a file")
    if path.suffix in _DOCUMENTS:
        return _from_document(path)
    if path.name.removesuffix(".gz").endswith(".csv"):
        return _from_table(path)
    raise InputError("unknown kind of cluster file", ".yaml, .json or .csv", file=path)


def read_teams(text: str) -> dict[str, tuple[float, str | None]]:
    """Weight and policy of the teams that a cluster file names: `teams: {vision: {weight: 2, policy: fifo}}`."""
    path = Path(text)
    document = _document(path) if path.suffix in _DOCUMENTS and path.is_file() else None
    teams = (document.get("teams") or {}) if isinstance(document, dict) else {}
    found: dict[str, tuple[float, str | None]] = {}
    for name, said in teams.items() if isinstance(teams, dict) else [("", None)]:
        weight, policy = (said.get("weight", 1), said.get("policy")) if isinstance(said, dict) else (0, None)
        known = isinstance(said, dict) and set(said) <= {"weight", "policy"} and policy in (None, *TEAM_POLICIES)
        if not (known and is_finite(weight) and weight > 0):
            expected = "NAME: {weight: NUMBER, policy: " + " | ".join(TEAM_POLICIES) + "}"
            raise InputError(f"invalid team {said!r}", expected, file=path, column=f"teams.{name}".rstrip("."))
        found[str(name)] = (float(weight), policy)
    return found


def _document(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        raise InputError("not valid YAML or JSON", file=path, line=None if mark is None else mark.line + 1) from None


def _from_document(path: Path) -> Cluster:
    document = _document(path)
    if not isinstance(document, dict) or not isinstance(document.get("nodes"), list):
        raise InputError("no list of nodes", "nodes: [{accelerator, gpus, ...}]", file=path, column="nodes")
    nodes: list[Node] = []
    for index, item in enumerate(document["nodes"]):
        where = f"nodes[{index}]"
        if not isinstance(item, dict) or not set(item) <= _KEYS or "accelerator" not in item or "gpus" not in item:
            expected = "accelerator and gpus, optionally id, cpus, mem_gib, rack, count"
            raise InputError(f"invalid node {item!r}", expected, file=path, column=where)
        try:
            count = int(item.get("count", 1))
            for k in range(count):
                name = str(item.get("id", f"{item['accelerator']}-{len(nodes)}"))
                nodes.append(
                    Node(
                        id=name if count == 1 else f"{name}-{k}",
                        accelerator=str(item["accelerator"]),
                        gpus=int(item["gpus"]),
                        cpu_milli=UNLIMITED if item.get("cpus") is None else round(float(item["cpus"]) * 1000),
                        mem_mib=UNLIMITED if item.get("mem_gib") is None else round(float(item["mem_gib"]) * 1024),
                        rack=str(item.get("rack", "")),
                    )
                )
        except (TypeError, ValueError):
            raise InputError(
                "a number is not a number", "gpus, cpus, mem_gib and count as numbers", file=path, column=where
            ) from None
    prices = dict(PRICE_PER_GPU_HOUR)
    prices.update({str(k): float(v) for k, v in (document.get("prices") or {}).items()})
    return cluster_of(nodes, prices)


def _from_table(path: Path) -> Cluster:
    try:
        raw = pl.read_csv(path, infer_schema=False)
    except Exception as error:
        raise InputError(f"cannot be read: {str(error).splitlines()[0]}", "a CSV table of nodes", file=path) from None
    table = companion_from_table(raw.with_row_index("line", offset=2), "nodes", path)
    nodes = [
        Node(
            id=row["node_id"],
            accelerator=row["gpu_type"] or "gpu",
            gpus=int(row["gpus"]),
            cpu_milli=UNLIMITED if row["cpus"] is None else round(row["cpus"] * 1000),
            mem_mib=UNLIMITED if row["mem_gib"] is None else round(row["mem_gib"] * 1024),
            rack=row["rack"] or "",
        )
        for row in table.iter_rows(named=True)
    ]
    return cluster_of(nodes, PRICE_PER_GPU_HOUR)
