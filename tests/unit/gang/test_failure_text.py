"""The lines of a log that say why a program failed, and hints for common causes."""

import pytest

from trainmaster.gang.failure_text import MAX_CHARACTERS, error_line, excerpt, hint

LOG = """epoch 1
Traceback (most recent call last):
  File "old.py", line 1, in <module>
    raise KeyError
KeyError: 'handled'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/a/train.py", line 7, in <module>
    main()
  File "/a/train.py", line 3, in main
    import nowhere
ModuleNotFoundError: No module named 'nowhere'
"""


def test_the_last_traceback_where_it_was_raised() -> None:
    assert excerpt(LOG).splitlines() == [
        '  File "/a/train.py", line 3, in main',
        "    import nowhere",
        "ModuleNotFoundError: No module named 'nowhere'",
    ]
    assert error_line(excerpt(LOG)) == "ModuleNotFoundError: No module named 'nowhere'"


def test_without_a_traceback_the_last_lines() -> None:
    assert excerpt("a\nb\n\nc\nd\n") == "b\nc\nd"
    assert (excerpt(""), error_line(""), hint("", "exit 1")) == ("", "", "")


def test_whatever_is_in_a_log_the_excerpt_is_short() -> None:
    assert len(excerpt("Traceback (most recent call last):\n" + "x" * 100_000)) <= MAX_CHARACTERS
    assert len(excerpt("y" * 100_000)) <= MAX_CHARACTERS


@pytest.mark.parametrize(
    ("output", "how", "told"),
    [
        (LOG, "exit 1", "no module 'nowhere'"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried", "exit 1", "out of memory"),
        ("MemoryError", "exit 1", "out of memory"),
        ("OSError: [Errno 98] Address already in use", "exit 1", "MASTER_PORT"),
        ("OSError: [Errno 28] No space left on device", "exit 1", "disk is full"),
        ("", "signal SIGKILL (worker-0 was killed)", "memory"),
        ("ValueError: 3", "exit 1", ""),
    ],
)
def test_hints(output: str, how: str, told: str) -> None:
    found = hint(output, how)
    assert told in found if told else not found
