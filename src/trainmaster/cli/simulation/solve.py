"""`trainmaster solve`: one decision on an instance file, no simulation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from trainmaster.cli.shared.output import check_output, check_writable, one_message, to_json, write_text
from trainmaster.cli.shared.safe_text import as_text
from trainmaster.cli.shared.typer_options import Output
from trainmaster.model.errors import InputError
from trainmaster.policies.gavel.instance import solve_instance as solve_allocation
from trainmaster.policies.oasis.instance.solve import solve_instance as solve_admission

_SOLVERS = {"allocation": solve_allocation, "admission": solve_admission}
_DEFAULT = {"allocation": "gavel-max-min", "admission": "oasis"}


@one_message
def solve(
    instance: Annotated[Path, typer.Argument(help="Instance file (JSON): kind allocation or admission.")],
    policy: Annotated[
        str | None, typer.Option("--policy", "-p", help="Default: gavel-max-min for allocation, oasis for admission.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
    output: Output = "table",
) -> None:
    """Solve an allocation instance (shares of accelerators) or an admission instance (OASiS)."""
    check_output(output)
    check_writable(json_file)
    data = _read(instance)
    kind = data.get("kind")
    if kind not in _SOLVERS:
        raise InputError(f"unknown kind {kind!r}", "allocation or admission", file=instance, column="kind")
    name, options = _policy(policy or _DEFAULT[kind])
    result = _SOLVERS[kind](data, name, options, source=str(instance))
    if json_file is not None:
        write_text(json_file, to_json(result))
    if output == "json":
        typer.echo(to_json(result), nl=False)
    elif kind == "allocation":
        _print_allocation(result)
    else:
        _print_admission(result)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", "an instance file", file=path) from None
    except UnicodeDecodeError:
        raise InputError("is not text", "JSON", file=path) from None
    except json.JSONDecodeError as error:
        raise InputError(f"is not JSON: {error.msg}", "JSON", file=path, line=error.lineno) from None
    except RecursionError:
        raise InputError("is nested too deeply", "an instance", file=path) from None
    if not isinstance(data, dict):
        raise InputError("is not an object", '{"kind": ...}', file=path)
    return data


def _policy(text: str) -> tuple[str, dict[str, Any]]:
    """`name:option=value,...` with plain values; the solver checks names and options."""
    name, _, tail = text.partition(":")
    options: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in tail.split(","))):
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise InputError(f"cannot read option '{item}'", "option=value", column="--policy")
        options[key.strip()] = _value(value.strip())
    return name, options


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def _print_allocation(result: dict[str, Any]) -> None:
    console = Console()
    types = sorted({name for shares in result["allocation"].values() for name in shares})
    objective = result["objective"]
    shown = "-" if objective is None else f"{objective:.6g}"
    console.print(
        f"[bold]{result['policy']}[/]: {result['status']}, objective {shown}, {result['solve_cpu_s'] * 1e3:.1f} ms"
    )
    table = Table()
    table.add_column("job")
    for name in types:
        table.add_column(as_text(name), justify="right")
    table.add_column("steps/s", justify="right")
    for job, shares in list(result["allocation"].items())[:50]:
        cells = [f"{shares[name]:.3f}" if name in shares else "" for name in types]
        speed = result["throughput"].get(job)
        table.add_row(as_text(job), *cells, "" if speed is None else f"{speed:.4g}")
    console.print(table)
    if len(result["allocation"]) > 50:
        console.print(f"... and {len(result['allocation']) - 50} more (use -o json)")
    if result.get("fallback"):
        console.print(as_text(f"note: {result['fallback']}"))


def _print_admission(result: dict[str, Any]) -> None:
    console = Console()
    console.print(f"total utility [bold]{result['total_utility']:.6g}[/], {result['solve_cpu_s'] * 1e3:.1f} ms")
    table = Table()
    shown = list(result["jobs"].items())[:50]
    headers = ["job", "admitted", "payoff", "completion"]
    if any("rejection" in verdict for _, verdict in shown):
        headers.append("what would have let it in")
    for header in headers:
        table.add_column(header, justify="right" if header in ("admitted", "payoff", "completion") else "left")
    for job, verdict in shown:
        payoff = verdict.get("payoff")
        completion = verdict.get("completion")
        table.add_row(
            as_text(job),
            "yes" if verdict["admitted"] else "no",
            "" if payoff is None else f"{payoff:.4g}",
            "" if completion is None else str(completion),
            *([_let_in(verdict["rejection"])] if "rejection" in verdict else []),
        )
    console.print(table)
    if len(result["jobs"]) > 50:
        console.print(f"... and {len(result['jobs']) - 50} more (use -o json)")


_WORTHWHILE_FACTOR = 1e-3
"""Prices that would have to fall below this part are no advice."""


def _let_in(rejection: dict[str, Any]) -> str:
    """The smallest change with which a rejected job would have been admitted."""
    if rejection["reason"] == "horizon":
        return "a longer horizon: all its workers from its arrival on are too slow for this one"
    if rejection["reason"] == "capacity":
        return "more servers, or a longer horizon: what is not committed cannot serve it in time"
    ways = []
    if rejection["price_factor"] and rejection["price_factor"] >= _WORTHWHILE_FACTOR:
        ways.append(f"prices below {rejection['price_factor']:.3g} of what they are")
    grace = rejection["grace_slots"]
    if grace is not None:
        ways.append(f"a utility that lasts {grace} slot{'' if grace == 1 else 's'} longer")
    return ", or ".join(ways) or "a higher utility: it is worth nothing when it could end"
