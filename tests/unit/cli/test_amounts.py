"""Durations, deadlines, ranges and memory as people type them."""

from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainmaster.cli.shared.amounts import mib_of, range_of
from trainmaster.cli.shared.times import deadline_seconds, seconds_of, short
from trainmaster.model.errors import InputError

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("90m", 5400), ("1h30m", 5400), ("1h 30m", 5400), ("2D", 172_800), ("1.5h", 5400),
     ("1w", 604_800), (" 5m ", 300), ("0", 0)],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of(text, "--x") == seconds


@pytest.mark.parametrize("text", ["", "h", "-5m", "5x", "nan", "inf", "1h30", "٣h", "٣", "1e999"])
def test_no_durations(text: str) -> None:
    with pytest.raises(InputError, match="invalid duration"):
        seconds_of(text, "--x")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 30), st.integers(0, 23), st.integers(0, 59), st.integers(1, 59))
def test_parts_of_a_duration_add_up(days: int, hours: int, minutes: int, seconds: int) -> None:
    text = f"{days}d{hours}h{minutes}m{seconds}s"
    assert seconds_of(text, "--x") == ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def test_deadlines_as_instants() -> None:
    assert deadline_seconds("2026-11-16T14:00+00:00", NOW) == 7200
    assert deadline_seconds("2026-11-16 13:00:30Z", NOW) == 3630
    assert deadline_seconds("3600", NOW) == 3600
    local = datetime.fromtimestamp(NOW + 60).strftime("%Y-%m-%dT%H:%M:%S")
    assert deadline_seconds(local, NOW) == 60
    for text in ("2026-11-16T11:59+00:00", "0s"):
        with pytest.raises(InputError, match="in the past"):
            deadline_seconds(text, NOW)
    with pytest.raises(InputError, match="invalid deadline"):
        deadline_seconds("2026-13-01", NOW)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.floats(-1e9, 1e9))
def test_short_is_short_and_keeps_the_sign(seconds: float) -> None:
    text = short(seconds)
    assert len(text) <= 7
    assert text.startswith("-") == (round(seconds) < 0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0s"), (59.4, "59s"), (59.6, "1m00s"), (600, "10m"), (3600, "1h00m"), (90_000, "1d01h"),
     (-90, "-1m30s")],
)  # fmt: skip
def test_short(seconds: float | None, text: str) -> None:
    assert short(seconds) == text


def test_ranges() -> None:
    assert range_of("1..4", "--x") == {"min": 1, "max": 4}
    assert range_of(" 3 ", "--x") == {"min": 3, "max": 3}
    for text in ("", "..", "1..", "..4", "1...4", "a", "-1..2", "1.5", "4..1", "9999999", "１..２"):
        with pytest.raises(InputError):
            range_of(text, "--x")


@pytest.mark.parametrize(
    ("text", "mib"),
    [("512", 512), ("512M", 512), ("512MiB", 512), ("8G", 8192), ("8GiB", 8192), ("8gb", 7630), ("1T", 1 << 20),
     ("0.5G", 512), ("1k", 1), ("1b", 1), ("2000000B", 2)],
)  # fmt: skip
def test_memory(text: str, mib: int) -> None:
    assert mib_of(text, "--memory") == mib


@pytest.mark.parametrize("text", ["", "G", "-1G", "1X", "1GG", "1 2"])
def test_no_memory(text: str) -> None:
    with pytest.raises(InputError):
        mib_of(text, "--memory")
