"""Plots of traces whatever their names are."""

from pathlib import Path

from trainmaster.report.trace_plots import plot_trace
from trainmaster.traces.assign import Assignment, assign
from trainmaster.traces.generator import GeneratorSpec, generate


def test_a_dollar_sign_begins_no_formula(tmp_path: Path) -> None:
    trace = generate(GeneratorSpec(jobs=20, name=r"cost $\frac{ $ x"), 1)
    made = plot_trace(assign(trace, Assignment(elastic_fraction=0.5, deadline_fraction=0.5), 2), tmp_path)
    assert [path.name for path in made] == ["arrivals.png", "sizes.png", "durations.png", "demand.png"]
