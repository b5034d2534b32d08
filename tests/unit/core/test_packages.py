"""What users install: a source package that builds, and a wheel that holds the compiled core."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.slow


def build(folder: Path, target: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder / "dist")]
    variables = {k: v for k, v in os.environ.items() if not k.startswith("TRAINMASTER_")} | environment
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source package, unpacked where nothing else of the project is."""
    folder = tmp_path_factory.mktemp("package")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    archive.unlink()
    (content,) = (p for p in folder.iterdir() if p.is_dir())
    return content


def names_in(folder: Path) -> set[str]:
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        return set(files.namelist())


def test_the_source_package_holds_sources_alone(unpacked: Path) -> None:
    files = {str(p.relative_to(unpacked)) for p in unpacked.rglob("*") if p.is_file()}
    assert {"hatch_build.py", "pyproject.toml", "LICENSE", "src/trainmaster/core/engine/engine_core.pxd"} <= files
    assert not [name for name in files if name.endswith((".so", ".c", "_compiled.json", ".pyc"))]


def test_without_a_compiler_one_message_names_the_way_out(unpacked: Path) -> None:
    done = build(unpacked, "wheel", CC="/bin/false")
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert said.count("TRAINMASTER_PURE=1") == 1
    assert "Install a C compiler" in said
    assert "Traceback" not in said


def test_the_slow_form_needs_no_compiler(unpacked: Path) -> None:
    done = build(unpacked, "wheel", CC="/bin/false", TRAINMASTER_PURE="1")
    assert done.returncode == 0, done.stderr
    names = names_in(unpacked)
    assert "trainmaster/core/engine/engine_core.py" in names
    assert not [name for name in names if name.endswith((".so", "_compiled.json"))]
    for wheel in (unpacked / "dist").glob("*.whl"):
        wheel.unlink()


def test_the_wheel_holds_the_compiled_core(unpacked: Path, tmp_path: Path) -> None:
    done = build(unpacked, "wheel")
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = (unpacked / "dist").glob("*.whl")
    assert "-cp311-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as files:
        files.extractall(tmp_path)
    modules = json.loads((tmp_path / "trainmaster" / "_compiled.json").read_text())["modules"]
    assert len(modules) > 30
    for module in modules:
        assert tmp_path.joinpath(*module.split(".")).with_suffix(".abi3.so").exists(), module
    code = (
        "import trainmaster.core.build_form as b, trainmaster.core.engine.engine_core as e; print(b.form(), e.__file__)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(tmp_path)}, cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout.split() == ["compiled", str(tmp_path / "trainmaster" / "core" / "engine" / "engine_core.abi3.so")]
