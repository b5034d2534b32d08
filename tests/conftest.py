"""Shared fixtures. Real data lives outside the project: `TRAINMASTER_DATA`, else `../shared`."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine makes any example slow; how fast things are is for bench/. The same code is tried with the same
# examples: what a run finds, the next one finds again. HYPOTHESIS_PROFILE=explore tries others.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

PROJECT_ROOT = Path(__file__).resolve().parent.parent
REAL_PROCESSES = ("launcher", "live", "runtime", "kubernetes")
"""Folders whose tests race real clocks and real processes with everything else on the machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One more try where a busy machine can be the cause. `-rR` names what needed it: look at those, too."""
    for item in items:
        if item.path.relative_to(PROJECT_ROOT).parts[1] in REAL_PROCESSES:
            item.add_marker(pytest.mark.flaky(reruns=1))


def data_root() -> Path:
    return Path(os.environ.get("TRAINMASTER_DATA", PROJECT_ROOT.parent / "shared"))


@pytest.fixture
def shared_data() -> Callable[[str], Path]:
    """Path of a file of the real-data folder, or skip: `shared_data("traces/philly.csv.gz")`."""

    def find(relative: str) -> Path:
        path = data_root() / relative
        if not path.exists():
            pytest.skip(f"real data not found: {path} (set TRAINMASTER_DATA to the folder that holds it)")
        return path

    return find
