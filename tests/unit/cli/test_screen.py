"""Tables fit any width, never wrap, and colour terminals only."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainmaster.cli.shared.screen import Cell, bar, cell, cut, paint, table_lines, text_width

WORDS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp", "Mn", "Me"]), max_size=60
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(60, 200), st.lists(st.lists(WORDS, min_size=4, max_size=4), max_size=5))
def test_no_line_is_wider_than_the_screen_and_none_is_lost(width: int, texts: list[list[str]]) -> None:
    rows = [[cell(text) for text in row] for row in texts]
    lines = table_lines(["A", "B", "C", "D"], rows, width, right=("B",))
    assert len(lines) == len(texts) + 1
    assert all(text_width(line) <= width for line in lines)
    assert all("\n" not in line for line in lines)


def test_the_last_column_gives_way_first() -> None:
    rows = [[Cell("job-1"), Cell("running"), Cell("x" * 100)]]
    lines = table_lines(["JOB", "STATE", "REASON"], rows, 40)
    assert lines[1] == "job-1  running  " + "x" * 23 + "…"
    assert len(lines[1]) == 40


def test_whole_columns_and_no_trailing_blanks() -> None:
    lines = table_lines(["A", "N"], [[Cell("x"), Cell("5")], [Cell("long"), Cell("12")]], 80, right=("N",))
    assert lines == ["A      N", "x      5", "long  12"]
    assert table_lines(["A", "B"], [[Cell("x"), Cell("")]], 80)[1] == "x"


@given(WORDS, st.integers(1, 20))
def test_cut(text: str, width: int) -> None:
    shown = cut(text, width)
    assert text_width(shown) <= width
    assert shown == text or (shown.endswith("…") and text.startswith(shown[:-1]))


def test_wide_letters_count_twice() -> None:
    assert text_width("你好") == 4
    assert cut("你好吗", 5) == "你好…"
    assert text_width("e\u0301") == 1


@pytest.mark.parametrize(
    ("fraction", "text"), [(0, "░░░░"), (1, "████"), (0.5, "██░░"), (0.6, "██▍░"), (7, "████"), (-1, "░░░░")]
)
def test_bar(fraction: float, text: str) -> None:
    assert bar(fraction, 4) == text


def test_colour_is_asked_for() -> None:
    assert paint("x", "red", colours=False) == "x"
    assert paint("x", "red", colours=True) == "\x1b[31mx\x1b[0m"
    assert paint("", "red", colours=True) == ""
    row = [[Cell("a", "green"), Cell("b")]]
    assert "\x1b" not in "".join(table_lines(["A", "B"], row, 80))
    assert "\x1b[32ma\x1b[0m" in table_lines(["A", "B"], row, 80, colours=True)[1]
