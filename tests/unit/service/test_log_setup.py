"""The service's log on the operator's terminal."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainmaster.service.log_setup import open_logbook

EVIL = "\x1b]0;owned\x07\x1b[2J\r\u202e\n2026 forged"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = [*root.handlers], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_what_jobs_say_does_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = open_logbook(tmp_path)
    log.info(f"job-1 ended: command '{EVIL}' not found", kind=EVIL, job="job-1")
    logging.getLogger("elsewhere").warning("a request failed: %s", EVIL)
    try:
        raise ValueError(EVIL)
    except ValueError:
        log.exception("a report was set aside")
    told = capsys.readouterr().err
    assert "\\x1b]0;owned" in told and "Traceback" in told
    assert not any(letter in told for letter in "\x1b\x07\r\u202e")
    assert sum(line.startswith("2026 forged") for line in told.splitlines()) == 1, "in the traceback alone"
