"""The service's handle on the process that looks ahead: one question at a time, never waited for.

The simulator would hold the interpreter's lock for seconds; in a process of its own, at low priority, it cannot
delay a decision. The process is started for the first question and ends by itself when nobody asks any more.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from trainmaster.forecast.forecast import Outlook
from trainmaster.forecast.worker import outlook_from_json
from trainmaster.model.errors import TrainmasterError

Answered = Callable[[int, float, dict[str, Outlook], float], None]
Failed = Callable[[str], None]


class Unforeseen(TrainmasterError):
    """No forecast could be made."""


class ForecastProcess:
    """`ask` returns at once; `answered(now_ms, cpu_s, outlooks, widening)` or `failed(why)` is called from another
    thread."""

    def __init__(self, answered: Answered, failed: Failed, idle_s: float = 120.0) -> None:
        self._answered = answered
        self._failed = failed
        self._idle_s = idle_s
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._talk = threading.Lock()
        """Held from a question to its answer."""
        self._asked = False
        self._closed = False
        self._timer: threading.Timer | None = None

    @property
    def busy(self) -> bool:
        return self._asked

    def ask(self, question: Mapping[str, Any]) -> bool:
        """See `trainmaster.forecast.worker_request`. False when the last question has not been answered yet."""
        with self._lock:
            if self._asked or self._closed:
                return False
            self._asked = True
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            thread = threading.Thread(target=self._converse, args=(question,), name="foresight", daemon=True)
            thread.start()
            return True

    def inquire(self, question: Mapping[str, Any]) -> dict[str, Outlook]:
        """Ask and wait for the answer, after the one that is under way; `Unforeseen` when there is none."""
        reply = self._reply(question)
        with self._lock:
            self._rest()
        if "error" in reply:
            raise Unforeseen(str(reply["error"]))
        return {key: outlook_from_json(value) for key, value in reply["outlooks"].items()}

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _converse(self, question: Mapping[str, Any]) -> None:
        reply = self._reply(question)
        if "error" in reply:
            self._failed(str(reply["error"]))
        else:
            outlooks = {key: outlook_from_json(value) for key, value in reply["outlooks"].items()}
            self._answered(reply["now_ms"], reply["cpu_s"], outlooks, reply["widening"])
        with self._lock:
            self._asked = False
            self._rest()

    def _reply(self, question: Mapping[str, Any]) -> dict[str, Any]:
        with self._talk:
            try:
                return self._exchange(json.dumps(question, separators=(",", ":")))
            except (OSError, ValueError) as error:
                self._let_go()
                return {"error": f"the process that looks ahead is gone ({error})"}

    def _rest(self) -> None:
        """Let the process end when nobody asks for a while."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._closed:
            self._timer = threading.Timer(self._idle_s, self._idle)
            self._timer.daemon = True
            self._timer.start()

    def _idle(self) -> None:
        if self._talk.acquire(blocking=False):  # else it is being asked, and rests again afterwards
            try:
                self._let_go()
            finally:
                self._talk.release()

    def _exchange(self, line: str) -> dict[str, Any]:
        with self._lock:
            if self._closed:
                raise OSError("closed")
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "trainmaster.forecast.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()
        reply = process.stdout.readline()
        if not reply:
            raise OSError(f"exit code {process.poll()}")
        return json.loads(reply)

    def _let_go(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
