"""The program and work folder of a job for a service on this machine: what is not there is refused at once."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from trainmaster.model.errors import InputError


def check_program(body: dict[str, Any]) -> None:
    """`body`: as sent. Without a PATH of its own (`--bare-env`) the service's decides, which is not known here."""
    folder = body.get("workdir")
    if isinstance(folder, str) and not Path(folder).is_dir():
        what = "is not a folder" if Path(folder).exists() else "not found"
        raise InputError(f"work folder '{folder}' {what}", "an existing folder", column="--workdir")
    program = body["command"][0]
    _check_script(body, program, folder or ".")
    path = body.get("env", {}).get("PATH")
    if os.sep in program:
        file = Path(folder or ".", program)
        if not file.exists():
            raise InputError(f"program '{program}' not found in {folder}", "an existing file", column="command")
        if file.is_dir() or not os.access(file, os.X_OK):
            remedy = f"`chmod +x {file}`, or name its interpreter, as in: python {program}"
            raise InputError(f"program '{program}' is not executable", "a program", remedy, column="command")
    elif path is not None and shutil.which(program, path=path) is None:
        remedy = "`--env PATH=...` adds folders; a file of the work folder is called ./NAME."
        raise InputError(f"program '{program}' not found on PATH", "an installed program", remedy, column="command")


def _check_script(body: dict[str, Any], program: str, folder: str) -> None:
    """`python train.py`: the file too. Of a job that waits for others it may be made by them."""
    script = body["command"][1] if len(body["command"]) > 1 else ""
    if not re.fullmatch(r"python[0-9.]*", os.path.basename(program)) or not script.endswith(".py") or body.get("after"):
        return
    if not script.startswith("-") and not Path(folder, script).exists():
        raise InputError(f"script '{script}' not found in {folder}", "an existing file", column="command")
