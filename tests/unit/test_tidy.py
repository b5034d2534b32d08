"""Habits that a machine can keep, as in TigerBeetle's tidy.zig: retired words stay away, what is too large shrinks.

A limit is a count of today. Whoever lowers a count lowers the limit; nobody raises one.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "trainmaster"

RETIRED_WORDS = frozenset(
    {
        "assembly",
        "burial",
        "desk",
        "footprint",
        "foresight",
        "guard",
        "happening",
        "happenings",
        "hasten",
        "incarnation",
        "incarnations",
        "keeper",
        "ledger",
        "ledgers",
        "lesson",
        "lessons",
        "passage",
        "prospect",
        "recast",
        "rehearsal",
        "reign",
        "renode",
        "rival",
        "shelf",
        "sighting",
        "sightings",
        "teller",
        "telling",
        "tellings",
        "turnover",
        "unsteady",
        "wish",
        "wishes",
        "withheld",
        "witness",
    }
)
"""Parts of identifiers that meant several things, or nothing outside this project: see `docs/glossary.md`."""
RETIRED_IN_TEXT = re.compile(r"\b(?:incarnations?|keepers?|reigns?|burials?|recasts?)\b", re.IGNORECASE)
"""The same in docstrings and comments, where a word is never anything else."""

LONG_LINES, MANY_PARAMETERS = 60, 10
LIMITS = {"long functions": 4, "functions with many parameters": 14, "fmt: skip": 0, "undocumented functions": 60}
"""Functions above 60 lines; functions with more than 10 parameters; statements kept from the formatter that are no
table; public functions of core, engine and policies without a docstring."""
FILES_PER_FOLDER = 23

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def _sources() -> dict[Path, str]:
    return {path: path.read_text() for path in sorted(SOURCE.rglob("*.py"))}


@cache
def _functions() -> tuple[tuple[Path, Function, bool], ...]:
    """Every function, and whether it is a method of a public class or a public function of its module."""
    found: list[tuple[Path, Function, bool]] = []
    for path, text in _sources().items():
        tree = ast.parse(text)
        public = {id(node) for node in tree.body if isinstance(node, Function) and not node.name.startswith("_")}
        found += [(path, node, id(node) in public) for node in ast.walk(tree) if isinstance(node, Function)]
    return tuple(found)


def _where(path: Path, node: Function) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"


def _long_functions() -> list[str]:
    return [_where(p, f) for p, f, _ in _functions() if (f.end_lineno or f.lineno) - f.lineno + 1 > LONG_LINES]


def _functions_with_many_parameters() -> list[str]:
    return [
        _where(p, f)
        for p, f, _ in _functions()
        if len(f.args.posonlyargs) + len(f.args.args) + len(f.args.kwonlyargs) > MANY_PARAMETERS
    ]


def _undocumented_functions() -> list[str]:
    return [
        _where(p, f)
        for p, f, public in _functions()
        if public and p.relative_to(SOURCE).parts[0] in ("core", "engine", "policies") and not ast.get_docstring(f)
    ]


def _unformatted() -> list[str]:
    """`fmt: skip` on statements that are no table, that is, no assignment at the top of a module."""
    found = []
    for path, text in _sources().items():
        if "fmt: skip" not in text:
            continue
        tables = {n.end_lineno for n in ast.parse(text).body if isinstance(n, ast.Assign | ast.AnnAssign)}
        found += [
            f"{path.relative_to(ROOT)}:{number}"
            for number, line in enumerate(text.splitlines(), 1)
            if line.endswith("# fmt: skip") and number not in tables
        ]
    return found


COUNTED = {
    "long functions": _long_functions,
    "functions with many parameters": _functions_with_many_parameters,
    "fmt: skip": _unformatted,
    "undocumented functions": _undocumented_functions,
}


def _parts(identifier: str) -> set[str]:
    return {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)}


def _retired(text: str, words: frozenset[str]) -> Iterator[tuple[int, str]]:
    """(line, word) of every retired word in identifiers, comments and docstrings."""
    before = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield from ((token.start[0], token.string) for _ in _parts(token.string) & words)
        elif token.type == tokenize.COMMENT or (token.type == tokenize.STRING and before in _STATEMENT_BEGINS):
            yield from ((token.start[0], word) for word in RETIRED_IN_TEXT.findall(token.string))
        before = before if token.type in (tokenize.NL, tokenize.COMMENT) else token.type


_STATEMENT_BEGINS = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def test_retired_words_do_not_come_back() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path, text in _sources().items()
        for line, word in _retired(text, RETIRED_WORDS)
    ]
    wrong += [str(p.relative_to(ROOT)) for p in _sources() if set(p.stem.split("_")) & RETIRED_WORDS]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("what", sorted(LIMITS))
def test_counts_only_shrink(what: str) -> None:
    found = COUNTED[what]()
    assert len(found) <= LIMITS[what], f"{len(found)} {what}, at most {LIMITS[what]}:\n" + "\n".join(found)


def test_folders_have_rooms() -> None:
    """No folder has more modules of its own than one can take in."""
    sizes = {
        str(folder.relative_to(ROOT)): len([*folder.glob("*.py")])
        for folder in [SOURCE, *(p for p in SOURCE.rglob("*") if p.is_dir())]
    }
    assert {name: n for name, n in sizes.items() if n > FILES_PER_FOLDER} == {}


def test_packages_say_what_lives_there() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for path, text in _sources().items()
        if path.name == "__init__.py" and text and path.parent != SOURCE and not ast.get_docstring(ast.parse(text))
    ]
    assert not wrong, "\n".join(wrong)


def test_records_of_decisions_say_what_became_of_their_words() -> None:
    """`docs/adr` tells of its time; what is written in words of then says what superseded it, or what it is called."""
    old = re.compile(r"\b(?:incarnations?|keepers?|reigns?|ledgers?|passages?|turnovers?)\b", re.IGNORECASE)
    told = re.compile(r"(?i)supersede[sd]?|is called \S+ now|is called \*\w[\w ]+\*(?:,| now)")
    records = {path.name: path.read_text() for path in (ROOT / "docs" / "adr").glob("*.md")}
    assert [name for name, text in sorted(records.items()) if old.search(text) and not told.search(text)] == []


def test_the_checks_bite() -> None:
    assert [*_retired("incarnation_count = 1\n", frozenset({"incarnation"}))] == [(1, "incarnation_count")]
    assert [*_retired("x = 1  # the keeper\n", frozenset())] == [(1, "keeper")]
    assert [*_retired('"""An incarnation."""\n', frozenset())] == [(1, "incarnation")]
    assert not [*_retired('x = {"memo": 1}\n', frozenset({"memo"}))], "stored formats keep their keys"
