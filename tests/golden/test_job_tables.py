"""Per-job tables of all policies are those of the reference, byte for byte."""

import json

import pytest

from support.job_tables import HASHES, table_hash

EXPECTED: dict[str, str] = json.loads(HASHES.read_text())
QUICK = {"plain/fifo", "plain/srtf", "elastic/gavel-max-min", "elastic/oasis", "costs/deadline", "failures/optimus"}


@pytest.mark.parametrize(
    "case", [pytest.param(key, marks=() if key in QUICK else pytest.mark.slow) for key in sorted(EXPECTED)]
)
def test_job_table(case: str) -> None:
    found = table_hash(*case.split("/", 1))
    if found is None:
        pytest.skip("needs the trace: set TRAINMASTER_DATA")
    assert found == EXPECTED[case]
