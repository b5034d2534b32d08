"""Snapshots of work folders: what is copied, once, with whose rights, and when it is removed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from trainmaster.backends.local import folder_reader, snapshots
from trainmaster.backends.local.accounts import Account
from trainmaster.backends.local.run_folder import JobFolder
from trainmaster.backends.local.snapshots import Damaged, SnapshotStore, moved
from trainmaster.model.errors import InputError


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "src").mkdir(parents=True)
    (folder / "train.py").write_text("print('old')\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "src" / "model.py").write_text("x = 1\n")
    return folder


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "home")


def a_job(tmp_path: Path, name: str = "job-1") -> JobFolder:
    folder = tmp_path / "home" / "jobs" / name
    folder.mkdir(parents=True)
    return JobFolder(folder)


def stored_bytes(tmp_path: Path) -> int:
    return sum(path.stat().st_size for path in (tmp_path / "home" / "snapshots" / "files").rglob("*") if path.is_file())


def test_a_job_runs_what_was_there_at_submission(tmp_path: Path, work: Path, store: SnapshotStore) -> None:
    taken = store.take(str(work), None)
    (work / "train.py").write_text("print('new')\n")
    (work / "src" / "model.py").unlink()
    here = store.unpack(taken.name, a_job(tmp_path), None)
    assert (here / "train.py").read_text() == "print('old')\n"
    assert (here / "src" / "model.py").read_text() == "x = 1\n"
    assert os.access(here / "run.sh", os.X_OK)
    (here / "result").write_text("of attempt 1")
    assert store.unpack(taken.name, JobFolder(here.parent), None) == here
    assert (here / "result").exists(), "a further attempt has the same folder"


def test_content_is_stored_once(tmp_path: Path, work: Path, store: SnapshotStore) -> None:
    (work / "big").write_bytes(os.urandom(1 << 20))
    first = store.take(str(work), None)
    before = stored_bytes(tmp_path)
    assert store.take(str(work), None).name == first.name
    assert stored_bytes(tmp_path) == before
    (work / "train.py").write_text("print('new')\n")
    assert store.take(str(work), None).name != first.name
    assert stored_bytes(tmp_path) == before + len("print('new')\n")


def test_a_job_cannot_change_the_snapshot_of_another(tmp_path: Path, work: Path, store: SnapshotStore) -> None:
    taken = store.take(str(work), None)
    mine, other = (store.unpack(taken.name, a_job(tmp_path, name), None) for name in ("job-1", "job-2"))
    try:
        (mine / "train.py").write_text("print('changed')\n")
    except PermissionError:
        assert os.geteuid() != 0
    assert (other / "train.py").read_text() == "print('old')\n"
    assert (store.unpack(taken.name, a_job(tmp_path, "job-3"), None) / "train.py").read_text() == "print('old')\n"


def test_ignored_files_of_a_checkout_are_left_out(work: Path, store: SnapshotStore) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=work, check=True)

    git("init", "-q")
    (work / ".gitignore").write_text("data\n")
    (work / "data").mkdir()
    (work / "data" / "huge").write_text("much")
    git("add", "train.py", "run.sh")
    git("commit", "-qm", "x")
    (work / "run.sh").unlink()
    assert store.take(str(work), None).paths == {".gitignore", "train.py", "src/model.py"}
    assert store.take(str(work / "src"), None).paths == {"model.py"}, "below the top of a checkout too"


def test_links_are_not_followed(tmp_path: Path, work: Path, store: SnapshotStore) -> None:
    outside = tmp_path / "data"
    outside.mkdir()
    (outside / "secret").write_text("s3cret")
    (work / "data").symlink_to("../data")
    (work / "alias.py").symlink_to(work / "train.py")
    taken = store.take(str(work), None)
    assert taken.paths == {"train.py", "run.sh", "src/model.py", "data", "alias.py"}
    (work / "train.py").write_text("print('new')\n")
    here = store.unpack(taken.name, a_job(tmp_path), None)
    assert os.readlink(here / "data") == str(outside)
    assert (here / "alias.py").read_text() == "print('old')\n"
    assert not any(path.read_bytes() == b"s3cret" for path in (tmp_path / "home").rglob("*") if path.is_file())


def test_the_home_of_the_service_is_not_copied_into_itself(tmp_path: Path, store: SnapshotStore) -> None:
    (tmp_path / "a.py").write_text("a")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "token").write_text("secret")
    assert store.take(str(tmp_path), None).paths == {"a.py"}


def test_folders_that_are_too_large_are_refused(
    work: Path, store: SnapshotStore, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    with (work / "sparse").open("wb") as file:
        file.truncate(snapshots.SNAPSHOT_BYTES)
    with pytest.raises(InputError, match="too large for a snapshot: at most 20000 files and 512 MiB"):
        store.take(str(work), None)
    (work / "sparse").unlink()
    monkeypatch.setattr(folder_reader, "SNAPSHOT_FILES", 2)
    monkeypatch.setattr("sys.argv", ["reader", str(work), "/nowhere"])
    assert folder_reader.main() == 2
    assert b"too large" in capsysbinary.readouterr().err


def test_what_cannot_be_read_is_named(work: Path, store: SnapshotStore) -> None:
    with pytest.raises(InputError, match="No such file"):
        store.take(str(work / "nowhere"), None)
    with pytest.raises(InputError, match="not a folder"):
        store.take(str(work / "train.py"), None)
    (work / "pipe").mkdir()
    os.mkfifo(work / "pipe" / "fifo")
    assert "pipe/fifo" not in store.take(str(work), None).paths


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can read as others")
def test_a_folder_is_read_with_the_rights_of_the_account(store: SnapshotStore, request: pytest.FixtureRequest) -> None:
    work = Path(tempfile.mkdtemp(dir="/tmp"))  # those of pytest are closed to other accounts
    request.addfinalizer(lambda: shutil.rmtree(work))
    work.chmod(0o755)
    (work / "train.py").write_text("print('old')\n")
    (work / "train.py").chmod(0o644)
    account = Account("ann", 61_001, 61_001, (61_001,))
    assert "train.py" in store.take(str(work), account).paths
    (work / "secret").write_text("of root")
    (work / "secret").chmod(0o600)
    with pytest.raises(InputError, match=r"cannot read '.*secret': Permission denied"):
        store.take(str(work), account)
    (work / "secret").unlink()
    (work / "link").symlink_to("/etc/shadow")
    assert store.take(str(work), account).paths >= {"link", "train.py"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_an_account_can_write_beside_the_files_of_its_snapshot(
    tmp_path: Path, work: Path, store: SnapshotStore
) -> None:
    account = Account("ann", 61_001, 61_001, (61_001,))
    here = store.unpack(store.take(str(work), None).name, a_job(tmp_path), account)
    assert {path.stat().st_uid for path in (here, here / "src")} == {61_001}
    assert (here / "train.py").stat().st_uid == 0
    assert (here / "train.py").stat().st_nlink == 2, "shared with the store"


def test_what_no_job_uses_is_removed_after_an_hour(tmp_path: Path, work: Path, store: SnapshotStore) -> None:
    used = store.take(str(work), None).name
    (work / "train.py").write_text("print('never committed')\n")
    unused = store.take(str(work), None).name
    (tmp_path / "home" / "snapshots" / "files" / ".partial").write_text("killed here")
    store.sweep({used})
    assert {path.stem for path in store._trees.iterdir()} == {used, unused}, "it may be committed yet"
    hour_ago_s = time.time() - snapshots.UNUSED_S - 60
    for path in (tmp_path / "home" / "snapshots").rglob("*"):
        os.utime(path, (hour_ago_s, hour_ago_s))
    store.sweep({used})
    assert {path.stem for path in store._trees.iterdir()} == {used}
    contents = {path.read_text() for path in store._files.rglob("*") if path.is_file()}
    assert contents == {"print('old')\n", "#!/bin/sh\n", "x = 1\n"}
    store.unpack(used, a_job(tmp_path), None)


def test_a_snapshot_that_is_gone_or_damaged_is_said_to_be(tmp_path: Path, work: Path, store: SnapshotStore) -> None:
    with pytest.raises(Damaged, match="is gone"):
        store.unpack("0" * 64, a_job(tmp_path), None)
    taken = store.take(str(work), None)
    next(path for path in store._files.rglob("*") if path.is_file()).unlink()
    with pytest.raises(Damaged, match="missing or damaged"):
        store.unpack(taken.name, a_job(tmp_path, "job-2"), None)
    assert not (tmp_path / "home" / "jobs" / "job-2" / "work").exists()


def test_modules_are_found_in_the_snapshot(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    assert moved("/p/src:/p:/p/venv:/px:/lib", "/p", tmp_path) == f"{tmp_path}/src:{tmp_path}:/p/venv:/px:/lib"
