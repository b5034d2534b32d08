"""A script whose Python lacks torch or transformers is told what is missing and how to get it."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("statement", "package"),
    [
        ("from trainmaster.runtime import elastic", "torch"),
        ("from trainmaster import runtime; runtime.elastic", "torch"),
        ("import trainmaster.runtime.hf_trainer", "transformers"),
        ("import trainmaster.runtime.lightning_trainer", "lightning"),
    ],
)
def test_the_missing_package_is_named(statement: str, package: str) -> None:
    script = f"import sys; sys.modules[{package!r}] = None\n{statement}"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert f"needs {package}, which this Python does not have" in ran.stderr
    assert f"pip install {package}" in ran.stderr
