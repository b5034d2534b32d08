"""What users are told of jobs that share devices: the job's page, the event log, and why a job waits alone."""

from pathlib import Path
from typing import Any

import pytest
from service_bench import Bench

from trainmaster.cli.live.job import facts
from trainmaster.estimate.catalogue import Entry, TableCatalogue
from trainmaster.estimate.pairs import PairSlowdowns
from trainmaster.sim.backend import SimulatedBackend
from trainmaster.sim.truth import Truth, TruthOptions

TABLE = TableCatalogue(
    "pairs",
    [Entry(model, 1, "v100", False, 10.0) for model in ("calm", "busy")]
    + [Entry("calm", 1, "v100", False, 9.0, "measured", "calm", 1, 8.0)]
    + [Entry("calm", 1, "v100", False, 5.0, "measured", "busy", 1, 3.0)],
)
JOB: dict[str, Any] = {"steps_per_s": {"v100": 10.0}, "steps": 1e6, "preemptible": True, "gpu_memory_mib": 4096}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path, nodes="v100:1x1", policy="gavel-max-min:space_sharing=true", round_ms=120_000)
    truth = Truth(bench.cluster, TruthOptions(report_ms=20_000, report_period_ms=20_000), 0, PairSlowdowns(TABLE))
    bench.world = SimulatedBackend(bench.cluster, truth, bench.settings.lease)
    return bench


def events(bench: Bench, kind: str = "sharing") -> list[str]:
    return [entry["text"] for entry in bench.get("/events", query="limit=1000")["events"] if entry["kind"] == kind]


def test_a_pair_that_pays_is_shown_with_what_it_keeps(bench: Bench) -> None:
    one, two = bench.submit(model="calm", **JOB), bench.submit(model="calm", **JOB)
    bench.pass_s(130)
    being_tried = bench.get(f"/jobs/{one}")["sharing"]
    assert [shared["job_id"] for shared in being_tried] == [two]
    assert not being_tried[0]["measured"] and being_tried[0]["low"] < being_tried[0]["kept"] < being_tried[0]["high"]
    bench.pass_s(120)
    shared = bench.get(f"/jobs/{one}")["sharing"][0]
    assert shared["measured"] and shared["kept"] == pytest.approx(0.85, abs=0.06)
    assert f"with {two}: keeps" in dict(facts(bench.get(f"/jobs/{one}")))["shares GPUs"]
    assert "they go on sharing" in events(bench)[0]
    assert any("sharing devices with" in text for text in events(bench, "launch"))


def test_a_pair_that_does_not_pay_is_parted_and_why_says_what_it_kept(bench: Bench) -> None:
    one, two = bench.submit(model="calm", **JOB), bench.submit(model="busy", **JOB)
    bench.pass_s(900)
    assert any("they are parted" in text for text in events(bench))
    assert not bench.get(f"/jobs/{one}")["sharing"] and not bench.get(f"/jobs/{two}")["sharing"]
    waiting = next(job for job in (one, two) if bench.state(job) == "pending")
    assert any("keep 0.80 of their speeds" in text for text in bench.get(f"/jobs/{waiting}/why")["advice"])


@pytest.mark.parametrize(("memory", "text"), [(None, "give --gpu-memory"), (14_000, "do not fit into the memory")])
def test_why_says_that_memory_keeps_a_job_from_sharing(bench: Bench, memory: int | None, text: str) -> None:
    bench.submit(model="calm", **JOB)
    other = bench.submit(model="busy", **{**JOB, "gpu_memory_mib": memory})
    bench.pass_s(60)
    assert any(text in line for line in bench.get(f"/jobs/{other}/why")["advice"])
