"""Files and functions that the pages on architecture and on finding code name exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "trainmaster"
NAMED = re.compile(r"`([a-zA-Z0-9_/]+\.py)(?::([A-Za-z0-9_.]+))?`")
FILES = [
    path.relative_to(ROOT).as_posix()
    for top in ("src", "tests", "bench", "examples")
    for path in (ROOT / top).rglob("*.py")
]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
QUESTIONS = (ROOT / "docs" / "finding-code.md").read_text()


def defined(path: Path, name: str) -> bool:
    """Whether the file defines this function, class or method."""
    body: list[ast.stmt] = ast.parse(path.read_text()).body
    for part in name.split("."):
        found = next(
            (
                n
                for n in body
                if isinstance(n, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and n.name == part
            ),
            None,
        )
        if found is None:
            return False
        body = found.body
    return True


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED.findall(PAGE + QUESTIONS))))
def test_what_the_pages_name_exists(file: str, name: str) -> None:
    path = next(folder / file for folder in (SOURCE, ROOT) if (folder / file).is_file())
    assert not name or defined(path, name)


def test_twenty_questions_have_answers() -> None:
    rows = re.findall(r"^\| (\d+) \| [A-Z].*\? \| (.+) \|$", QUESTIONS, re.MULTILINE)
    assert [number for number, _ in rows] == [str(k + 1) for k in range(20)]
    assert all(NAMED.search(answer) for _, answer in rows)


def test_the_way_of_a_job_is_told_by_names() -> None:
    assert len(set(NAMED.findall(PAGE))) > 60
    assert not defined(SOURCE / "gang" / "attempt.py", "Attempt.no_such_method")


def test_folders_in_the_table_exist() -> None:
    folders = re.findall(r"^\| ((?:`[a-z]+/`(?:, )?)+) \|", PAGE, re.MULTILINE)
    named = {name for row in folders for name in re.findall(r"`([a-z]+)/`", row)}
    there = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert named == there


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/**/*.md")), ids=lambda page: page.stem)
def test_files_that_pages_name_exist(page: Path) -> None:
    """Records of decisions (`adr`) tell of their time; `train.py` is the reader's own."""
    if page.parent.name != "adr":
        named = {file for file, _ in NAMED.findall(page.read_text())} - {"train.py"}
        assert {file for file in named if not any(f"/{path}".endswith(f"/{file}") for path in FILES)} == set()
