"""Runs tests on a copy of the package, its core compiled with bounds checks: `python bounds_checked.py PYTEST-ARGS`.

The copy lives in `build/with-bounds`, so that the normal build is not disturbed and only changed modules are compiled.
An index out of bounds in a function that raises nothing is printed by the interpreter: it fails the test it occurs in.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
COPY = ROOT / "build" / "with-bounds"
LEFT_OUT = (".so", ".pyc", "_compiled.json")
ONLY_BOUNDS = "import trainmaster.core.build_form as b; assert b.form() == 'compiled with bounds checks', b.form()"


def mirror() -> None:
    """Bring the copy up to date; files that have not changed keep their time, so they are not compiled again."""
    wanted = {p for p in (ROOT / "src").rglob("*") if p.is_file() and not p.name.endswith(LEFT_OUT)}
    wanted.add(ROOT / "hatch_build.py")
    for path in wanted:
        target = COPY / path.relative_to(ROOT)
        if not target.exists() or target.read_bytes() != path.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    for path in (COPY / "src").rglob("*"):
        if path.is_file() and not path.name.endswith(LEFT_OUT) and ROOT / path.relative_to(COPY) not in wanted:
            path.unlink()


def main() -> None:
    mirror()
    environment = os.environ | {"TRAINMASTER_BOUNDS": "1", "PYTHONPATH": str(COPY / "src")}
    strict = ["-W", "error::pytest.PytestUnraisableExceptionWarning"]
    for command in (
        [sys.executable, str(COPY / "hatch_build.py")],
        [sys.executable, "-c", ONLY_BOUNDS],
        [sys.executable, "-m", "pytest", *strict, *sys.argv[1:]],
    ):
        code = subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode
        if code:
            sys.exit(code)


if __name__ == "__main__":
    main()
