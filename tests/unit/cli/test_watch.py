"""`trainmaster queue --watch` on a terminal: drawn in place, whole frames, and the terminal left as it was."""

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
COLUMNS, LINES = 80, 12
ENTER, LEAVE = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"


def _read_until(terminal: int, seen: bytes, wanted: bytes, limit_s: float = 30.0) -> bytes:
    end = time.monotonic() + limit_s
    while wanted not in seen:
        assert time.monotonic() < end, f"no {wanted!r} in {seen!r}"
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                seen += os.read(terminal, 65536)
            except OSError:  # the other side has closed
                break
    return seen


def test_frames_are_redrawn_in_place_and_the_screen_is_given_back(service: Any) -> None:
    for number in range(40):
        service.add(f"job-{number}", position=number + 1, reason="needs 8 GPUs; " + "held by many " * 20)
    command = [sys.executable, "-m", "trainmaster", "queue", "--watch", "--interval", "0.1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm"}
    for stated in ("COLUMNS", "LINES"):  # the terminal itself is to be asked
        environment.pop(stated, None)
    child, terminal = pty.fork()
    if (
        child == 0
    ):  # its size first, so that the first frame already fits; what runs in the background ignores interrupts
        signal.signal(signal.SIGINT, signal.default_int_handler)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        os.execvpe(command[0], command, environment)
    try:
        seen = _read_until(terminal, b"", b"job-3")
        service.change("job-0", state="running")
        seen = _read_until(terminal, seen, b"running")
        os.write(terminal, b"\x03")
        seen = _read_until(terminal, seen, LEAVE)
    except BaseException:
        os.kill(child, signal.SIGKILL)  # or it is waited for in vain
        raise
    finally:
        _, status = os.waitpid(child, 0)
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    assert seen.startswith(ENTER)
    frames = seen.split(b"\x1b[H")[1:]
    assert len(frames) >= 2
    for frame in frames[:-1]:
        assert b"\x1b[2J" not in frame, "clearing the screen flickers"
        lines = frame.split(b"\x1b[J")[0].split(b"\r\n")
        assert len(lines) <= LINES, "the frame fits, so nothing scrolls"
        assert b"of 40 are shown" in frame or b"\xe2\x80\xa6" in frame
