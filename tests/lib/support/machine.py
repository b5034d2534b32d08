"""One machine as its user sees it: a home, an empty folder to type in, the service, the commands."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support import ROOT

TRAINMASTER = [sys.executable, "-m", "trainmaster"]


class Machine:
    """A home, an empty folder to type in, and the service."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.work = folder / "work"
        self.work.mkdir()
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("TRAINMASTER_")},
            "TRAINMASTER_HOME": str(self.home),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH")))),
        }
        self.service: subprocess.Popen[bytes] | None = None

    def up(self, *options: str) -> None:
        arguments = ["up", *(options or ("--nodes", "v100=2x2,k80=2x2")), "--port", "0", "--quiet"]
        (self.home / "address").unlink(missing_ok=True)
        self.service = subprocess.Popen(
            [*TRAINMASTER, *arguments], cwd=self.work, env=self.environment, start_new_session=True
        )
        until(lambda: (self.home / "address").exists(), "the service to come up", 120)

    def down(self, how: int = signal.SIGTERM) -> None:
        if self.service is not None:
            self.service.send_signal(how)
            self.service.wait(60)

    def start(self, *arguments: object) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*TRAINMASTER, *map(str, arguments)], cwd=self.work, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def type(self, *arguments: object, code: int = 0) -> str:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=120)
        assert process.returncode == code, f"{arguments}: {process.returncode}\n{out}{err}"
        assert "Traceback" not in err
        return out if code == 0 else out + err

    def json(self, *arguments: object) -> Any:
        return json.loads(self.type(*arguments, "-o", "json"))

    def until_state(self, job: str, *states: str) -> dict[str, Any]:
        view: dict[str, Any] = {}

        def there() -> bool:
            nonlocal view
            view = self.json("job", job)
            return view["state"] in states

        until(there, f"{job} to be {states}", 90)
        return view


def until(true: Callable[[], bool], what: str, limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.2)
