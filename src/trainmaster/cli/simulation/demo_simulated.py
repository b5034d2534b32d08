"""`trainmaster demo --simulated`: the bundled trace under several policies, and a table to compare them."""

from __future__ import annotations

from importlib.resources import as_file, files

from rich.console import Console
from rich.table import Table

from trainmaster.cli.shared.output import progress_bar
from trainmaster.cli.simulation.simulate import duration
from trainmaster.policies.registry import entries
from trainmaster.sim.experiment import Experiment, prepare, run

_CLUSTER = "v100=16x4,p100=8x4,k80=8x4"
_WANTED = (
    "fifo", "fifo:backfill=true", "sjf", "srtf", "las", "tiresias", "drf", "tetris", "optimus", "gavel-max-min",
    "gavel-ftf", "deadline",
)  # fmt: skip


def simulated_demo() -> None:
    """Simulate the bundled trace of 200 jobs on 32 GPUs of three types under several policies."""
    known = {item.name for item in entries()}
    chosen = [name for name in _WANTED if name.partition(":")[0] in known]
    console = Console()
    console.print(f"A generated trace of 200 jobs on {_CLUSTER} (restart cost 30 s):")
    rows = []
    with as_file(files("trainmaster.data") / "demo.csv") as trace, progress_bar("simulating", len(chosen)) as progress:
        for index, name in enumerate(chosen):
            progress(index, text=f"simulating {name}")
            wanted = Experiment(str(trace), name, _CLUSTER, throughputs="builtin", restart_cost_s=30.0, unfit="reject")
            rows.append(run(prepare(wanted)).summary)
        progress(len(chosen))
    table = Table()
    table.add_column("policy", no_wrap=True)
    for header in ("mean JCT", "p99 JCT", "used", "met", "ratio", "stops"):
        table.add_column(header, justify="right", no_wrap=True)
    best = min(row["average_jct_s"] for row in rows)
    for row in sorted(rows, key=lambda r: r["average_jct_s"]):
        style = "bold" if row["average_jct_s"] == best else ""
        met = row["deadline_met_fraction"]
        table.add_row(
            row["policy"],
            duration(row["average_jct_s"]),
            duration(row["p99_jct_s"]),
            f"{row['utilization']:.0%}",
            "-" if met is None else f"{met:.0%}",
            f"{row['fairness']['mean']:.2f}",
            str(row["preemptions"]),
            style=style,
        )
    console.print(table)
    console.print(
        "JCT: completion time. met: deadlines met. ratio: mean finish-time ratio to a fair share. stops: preemptions."
    )
    console.print("Next: trainmaster simulate YOUR_TRACE --policy srtf --cluster v100:4x8")
