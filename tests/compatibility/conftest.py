"""The pinned files, and the bench of the control plane that opens them."""

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "unit" / "service"))


@pytest.fixture(scope="session")
def pinned() -> Callable[[str], Any]:
    """Content of a pinned JSON file: `pinned("crd")`."""
    return lambda name: json.loads(gzip.decompress((HERE / "v0_1" / f"{name}.json.gz").read_bytes()))
