"""The service's own log: one JSON object a line in the home folder, and readable lines on the terminal."""

from __future__ import annotations

import logging
import logging.handlers
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from trainmaster.engine.ports import LogEntry
from trainmaster.wire.safe_text import safe_block, safe_line

MAX_BYTES = 10 << 20
KEPT_FILES = 5
MAX_ENTRIES = 20
"""Entries of one commit that are logged one by one."""


def open_logbook(folder: Path, level: str = "info", quiet: bool = False) -> structlog.stdlib.BoundLogger:
    """Send all logging to `service.log` there (rotated) and, unless `quiet`, to the terminal."""
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    as_json = structlog.stdlib.ProcessorFormatter(
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(sort_keys=True),
        ],
        foreign_pre_chain=shared,
    )
    file = logging.handlers.RotatingFileHandler(
        folder / "service.log", maxBytes=MAX_BYTES, backupCount=KEPT_FILES, encoding="utf-8", errors="backslashreplace"
    )
    file.setFormatter(as_json)
    handlers: list[logging.Handler] = [file]
    if not quiet:
        terminal = logging.StreamHandler(sys.stderr)
        terminal.setFormatter(
            structlog.stdlib.ProcessorFormatter(
                processors=[
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    structlog.processors.format_exc_info,
                    _harmless,
                    structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0),
                ],
                foreign_pre_chain=shared,
            )
        )
        handlers.append(terminal)
    root = logging.getLogger()
    root.handlers[:] = handlers
    root.setLevel(level.upper())
    for noisy in ("uvicorn.access", "alembic", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    return structlog.stdlib.get_logger("trainmaster")


def _harmless(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """What jobs and users wrote must not steer the operator's terminal, nor pass for lines of ours."""
    clean = {name: safe_line(value) if isinstance(value, str) else value for name, value in event.items()}
    return clean | {name: safe_block(event[name]) for name in ("exception", "stack") if name in event}


def log_entries(log: structlog.stdlib.BoundLogger, entries: Sequence[LogEntry]) -> None:
    """What a commit says in the event log; many submissions at once are one line."""
    if not log.isEnabledFor(logging.INFO):
        return
    submitted = [entry.job_id for entry in entries if entry.kind == "submitted"]
    if len(submitted) > 1:
        log.info(f"{len(submitted)} jobs submitted", kind="submitted", first=submitted[0], last=submitted[-1])
        entries = [entry for entry in entries if entry.kind != "submitted"]
    for entry in entries[:MAX_ENTRIES]:
        log.info(entry.text, kind=entry.kind, job=entry.job_id)
    if len(entries) > MAX_ENTRIES:
        log.info("and more", entries=len(entries) - MAX_ENTRIES)
