"""The list of commands: complete in `--help`, truthful, and quick to start."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainmaster.cli.main import ENTRIES
from trainmaster.cli.shared.lazy import Entry

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100"}
HEAVY = ("numpy", "polars", "pydantic", "httpx", "fastapi", "matplotlib", "yaml", "torch", "sqlalchemy")


def test_help_lists_every_command_without_loading_one() -> None:
    code = (
        "import sys\nfrom trainmaster.cli.main import app\n"
        "try:\n    app(['--help'])\nfinally:\n"
        f"    print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    for entry in ENTRIES:
        assert f" {entry.name} " in done.stdout


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_command_loads_and_its_help_is_its_own(entry: Entry) -> None:
    command = entry.load()
    assert command.help.strip().splitlines()[0] == entry.help


@pytest.mark.parametrize("module", ["trainmaster", "trainmaster.cli.main"])
def test_either_module_is_the_command(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("trainmaster ")


def test_submit_needs_little() -> None:
    """Of what the service, the simulator and reports need, it imports pydantic alone."""
    code = f"""
import sys
from trainmaster.cli.main import main
sys.argv = ["trainmaster", "submit", "--", "true"]
try:
    main()
except SystemExit as end:
    print(end.code, [name for name in {HEAVY} if name in sys.modules])
"""
    nowhere = {**ENVIRONMENT, "TRAINMASTER_URL": "http://127.0.0.1:9", "TRAINMASTER_TOKEN": "x" * 16}
    done = subprocess.run([sys.executable, "-c", code], env=nowhere, capture_output=True, text=True, check=True)
    assert "127.0.0.1:9" in done.stderr, "it got as far as asking"
    assert done.stdout.split(" ", 1)[1].strip() == "['pydantic']"


def test_live_commands_are_promised() -> None:
    names = {entry.name for entry in ENTRIES}
    promised = "submit run queue job why logs cancel pause resume resize nodes events doctor"
    assert names >= set(promised.split())


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_reading_commands_take_o_json(entry: Entry) -> None:
    if entry.name in ("queue", "job", "why", "logs", "nodes", "events", "doctor", "policy", "entities", "submit"):
        options = {name for parameter in entry.load().params for name in parameter.opts}
        assert {"-o", "--output", "--home"} <= options


def test_a_mistyped_command_is_named_with_what_was_meant(invoke: Any) -> None:
    code, _, err = invoke("qeue")
    assert code == 2
    assert "queue" in err


def test_queue_starts_quickly_and_light(service: Any, tmp_path: Path) -> None:
    """CPU seconds of the whole process, interpreter included, best of three: other work on the machine is no fault."""
    for number in range(50):
        service.add(f"job-{number:02d}", position=number + 1)
    heavy = (*HEAVY, "rich")
    code = (
        "import sys\nsys.argv = ['trainmaster', 'queue']\nfrom trainmaster.cli.main import main\n"
        "try:\n    main()\nfinally:\n    import resource\n    used = resource.getrusage(resource.RUSAGE_SELF)\n"
        f"    print(used.ru_utime + used.ru_stime, sorted(set({heavy!r}) & set(sys.modules)), file=sys.stderr)"
    )
    best = 9.0
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=ENVIRONMENT | {"TRAINMASTER_HOME": os.environ["TRAINMASTER_HOME"]},
            capture_output=True,
            text=True,
        )
        cpu_s, _, loaded = done.stderr.strip().partition(" ")
        assert loaded == "[]"
        assert "job-49" in done.stdout
        best = min(best, float(cpu_s))
    assert best < 0.3
