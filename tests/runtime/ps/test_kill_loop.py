"""Servers and workers are killed at random moments: training goes on and the loss falls (large counts: bench)."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench" / "bench_runtime_ps.py"


@pytest.mark.slow
def test_kills_of_servers_and_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("bench_runtime_ps", BENCH)
    assert spec is not None and spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    # Asserts inside: progress is never below the last checkpoint, the loss falls.
    found = bench.bench_kills(argparse.Namespace(kills=5, seed=7), tmp_path / "kills")
    assert len(found["recovery_s"]) == 10
    assert "survived" in capsys.readouterr().out
