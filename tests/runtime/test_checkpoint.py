"""Checkpoints: what goes in comes out; torn, corrupt and unwritable ones never cost the last good one."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trainmaster.runtime import tree
from trainmaster.runtime.checkpoint import Checkpoints, Folder
from trainmaster.runtime.errors import CheckpointError, LeaseOver

SOURCE = Path(__file__).resolve().parents[2] / "src"

ARRAYS = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_, np.complex64]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | ARRAYS
)
KEYS = st.text(max_size=4) | st.integers() | st.tuples(st.integers(), st.text(max_size=2))
STATES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3).map(OrderedDict)
    ),
    max_leaves=12,
)


class Memory:
    """A location in memory: what `Location` asks for and no more."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def names(self) -> list[str]:
        return sorted(self.files)

    def write(self, name: str, parts: Iterable[bytes | memoryview], permitted: Callable[[], None]) -> None:
        data = b"".join(bytes(part) for part in parts)
        permitted()
        self.files[name] = data

    def read(self, name: str) -> memoryview:
        return memoryview(self.files[name])

    def delete(self, name: str) -> None:
        del self.files[name]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other, equal_nan=True)
    if isinstance(one, dict):
        return type(one) is type(other) and [*one] == [*other] and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and one == other


@given(STATES)
def test_any_state_survives(state: Any) -> None:
    checkpoints = Checkpoints(Memory())
    checkpoints.save(7, state)
    loaded = checkpoints.load()
    assert loaded is not None and loaded.step == 7 and not loaded.skipped
    assert _same(loaded.state, state)


def test_states_of_torch_survive(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)).double()
    model[0].bfloat16()
    optimizer = torch.optim.Adam(model[1:].parameters())
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5])
    model[1:](torch.randn(5, 4, dtype=torch.float64)).sum().backward()
    optimizer.step()
    schedule.step()
    state = {
        "m": model.state_dict(),
        "o": optimizer.state_dict(),
        "s": schedule.state_dict(),
        "r": torch.get_rng_state(),
    }
    checkpoints = Checkpoints(Folder(tmp_path))
    checkpoints.save(1, state)
    loaded = checkpoints.load()
    assert loaded is not None
    for name, tensor in state["m"].items():
        assert torch.equal(loaded.state["m"][name], tensor) and loaded.state["m"][name].dtype == tensor.dtype
    optimizer.load_state_dict(loaded.state["o"])
    schedule.load_state_dict(loaded.state["s"])
    assert isinstance(loaded.state["s"]["milestones"], Counter)
    assert torch.equal(loaded.state["r"], state["r"])


@settings(max_examples=200)
@given(data=st.data(), steps=st.integers(1, 3))
def test_a_damaged_file_is_passed_over(data: st.DataObject, steps: int) -> None:
    """Cut anywhere, or any bit flipped: the one before is used, and it is said which was bad."""
    memory = Memory()
    checkpoints = Checkpoints(memory)
    for step in range(steps):
        checkpoints.save(step, {"w": np.full(5, step), "name": "x" * step})
    newest = memory.names()[-1]
    whole = memory.files[newest]
    if data.draw(st.booleans()):
        memory.files[newest] = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        at = data.draw(st.integers(0, len(whole) - 1))
        flipped = whole[at] ^ (1 << data.draw(st.integers(0, 7)))
        memory.files[newest] = whole[:at] + bytes([flipped]) + whole[at + 1 :]
    if steps == 1:
        with pytest.raises(CheckpointError, match="no checkpoint"):
            checkpoints.load()
    else:
        loaded = checkpoints.load()
        assert loaded is not None and loaded.step == steps - 2 and newest in loaded.skipped[0]


def test_only_the_last_few_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(Folder(tmp_path), keep=2)
    assert checkpoints.load() is None
    for step in (1, 5, 10):
        checkpoints.save(step, {"step": step})
    assert checkpoints.steps() == [5, 10]
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failing_disk_leaves_the_last_good_one(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(Folder(tmp_path))
    checkpoints.save(1, {"w": np.arange(10)})

    def fail(file: Any, part: bytes) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("trainmaster.runtime.checkpoint._write_all", fail)
    with pytest.raises(CheckpointError, match="step 1, is untouched"):
        checkpoints.save(2, {"w": np.arange(10)})
    loaded = checkpoints.load()
    assert loaded is not None and loaded.step == 1
    assert sorted(os.listdir(tmp_path)) == ["step-000000000001.ckpt"]


def test_a_really_full_disk(tmp_path: Path) -> None:
    """The kernel refuses the bytes half-way: a limit on file sizes."""
    code = (
        "import numpy as np, resource, signal, sys\n"
        "from trainmaster.runtime.checkpoint import Checkpoints, Folder\n"
        "c = Checkpoints(Folder(sys.argv[1])); c.save(1, {'w': np.zeros(100)})\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "c.save(2, {'w': np.zeros(1 << 20)})\n"
    )
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=env, capture_output=True, text=True)
    assert result.returncode == 1 and "could not be written" in result.stderr and "untouched" in result.stderr
    assert sorted(os.listdir(tmp_path)) == ["step-000000000001.ckpt"]


def test_nothing_is_renamed_without_a_lease(tmp_path: Path) -> None:
    def refuse() -> None:
        raise LeaseOver("over")

    checkpoints = Checkpoints(Folder(tmp_path))
    with pytest.raises(LeaseOver):
        checkpoints.save(1, {}, refuse)
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_stored_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"state\['a'\]\[1\] is a object"):
        tree.flatten({"a": [1, object()]})
    with pytest.raises(CheckpointError, match="plain numbers"):
        tree.flatten(np.array([object()]))


def test_kill_9_while_saving(tmp_path: Path) -> None:
    """Ten deaths at random moments: there is always a whole checkpoint, never an older one than before."""
    code = (
        "import numpy as np, sys\n"
        "from trainmaster.runtime.checkpoint import Checkpoints, Folder\n"
        "c = Checkpoints(Folder(sys.argv[1]), keep=2)\n"
        "step = c.load().step if c.steps() else 0\n"
        "print('go', flush=True)\n"
        "while True:\n"
        "    step += 1; c.save(step, {'w': np.full(50_000, step)}); print(step, flush=True)\n"
    )
    chance = random.Random(8)
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    checkpoints, before = Checkpoints(Folder(tmp_path)), 0
    for _ in range(10):
        process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=env, stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"go\n"
        time.sleep(chance.uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
        told = [int(line) for line in process.stdout.read().split() if line.isdigit()]
        process.wait()
        process.stdout.close()
        loaded = checkpoints.load() if checkpoints.steps() else None
        step = 0 if loaded is None else loaded.step
        assert step >= max([before, *told])
        assert loaded is None or np.all(loaded.state["w"] == step)
        before = step
    assert before > 0
