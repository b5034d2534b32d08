"""Copies of work folders, taken at submission: editing files does not change a job that waits.

home/snapshots/files/<aa>/<sha256>[x]   content, once however many snapshots hold it; x: executable
home/snapshots/trees/<sha256>.json      a snapshot: its files, in order of their paths
home/jobs/<job>/work/                   the folder in which the job runs, made of them at its first attempt

A submission touches what it uses. What no active job uses and nobody has touched for an hour is removed, so a
service that is killed between the copy and the commit leaves nothing for long.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from trainmaster.backends.local.accounts import Account
from trainmaster.backends.local.run_folder import JobFolder
from trainmaster.jobspec.limits import SNAPSHOT_BYTES, SNAPSHOT_FILES
from trainmaster.model.errors import InputError

UNUSED_S = 3600.0
"""A submission is committed long before."""
_CHUNK = 1 << 20
Tree = list[tuple[str, str, str, int]]
"""Path, kind (f, x: executable, l: link), digest or target, size."""


class Damaged(Exception):
    """A snapshot that cannot be unpacked any more."""


@dataclass(frozen=True)
class Snapshot:
    name: str
    paths: frozenset[str]


class SnapshotStore:
    def __init__(self, home: Path) -> None:
        self._home = home
        self._files, self._trees = home / "snapshots" / "files", home / "snapshots" / "trees"
        self._lock = threading.Lock()
        """Files are removed or added, never both at once."""

    def take(self, folder: str, account: Account | None) -> Snapshot:
        """Copy a folder, read with the rights of the account; `InputError` says why not."""
        become = [] if account is None else [json.dumps(asdict(account))]
        reader = subprocess.Popen(
            [sys.executable, "-P", "-m", "trainmaster.backends.local.folder_reader", folder, str(self._home), *become],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=None if account is None else account.environment(os.environ),
        )
        assert reader.stdout is not None
        assert reader.stderr is not None
        try:
            with self._lock:
                tree = self._stored(reader.stdout)
                why = reader.stderr.read().decode("utf-8", "replace").strip()
                if reader.wait() != 0:
                    raise InputError(why.splitlines()[-1] if why else "cannot be read", column="snapshot")
                return self._recorded(tree)
        except tarfile.TarError as error:
            reader.kill()
            why = reader.stderr.read().decode("utf-8", "replace").strip()
            raise InputError(why.splitlines()[-1] if why else str(error), column="snapshot") from None
        except OSError as error:
            raise InputError(f"the snapshot cannot be stored: {error.strerror}", column="snapshot") from None
        finally:
            reader.kill()
            reader.wait()
            reader.stdout.close()
            reader.stderr.close()

    def _stored(self, stream: IO[bytes]) -> Tree:
        """The reader may be another user's process: nothing that it says leads out of the store."""
        tree: Tree = []
        total = 0
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for entry in archive:
                total += entry.size
                parts = Path(entry.name).parts
                if entry.name.startswith("/") or ".." in parts or not parts:
                    raise tarfile.TarError(f"impossible path '{entry.name}'")
                if len(tree) >= SNAPSHOT_FILES or total > SNAPSHOT_BYTES:
                    raise tarfile.TarError("the work folder is too large for a snapshot")
                if entry.issym():
                    tree.append((entry.name, "l", entry.linkname, 0))
                    continue
                content = archive.extractfile(entry)
                if content is None:
                    raise tarfile.TarError(f"'{entry.name}' is not a file")
                kind = "x" if entry.mode & 0o100 else "f"
                tree.append((entry.name, kind, self._keep(content, kind), entry.size))
        return sorted(tree)

    def _keep(self, content: IO[bytes], kind: str) -> str:
        self._files.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial, digest = self._files / ".partial", hashlib.sha256()
        with partial.open("wb") as file:
            while chunk := content.read(_CHUNK):
                digest.update(chunk)
                file.write(chunk)
        kept = self._file(kind, digest.hexdigest())
        if kept.exists():
            os.utime(kept)
            partial.unlink()
        else:
            kept.parent.mkdir(mode=0o700, exist_ok=True)
            partial.chmod(0o555 if kind == "x" else 0o444)
            partial.replace(kept)
        return digest.hexdigest()

    def _recorded(self, tree: Tree) -> Snapshot:
        text = json.dumps(tree, separators=(",", ":")).encode()
        name = hashlib.sha256(text).hexdigest()
        self._trees.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._trees / f"{name}.json"
        if path.exists():
            os.utime(path)
        else:
            partial = path.with_suffix(".partial")
            partial.write_bytes(text)
            os.sync()  # once for all files: the job must not be stored before what it runs
            partial.replace(path)
        return Snapshot(name, frozenset(entry[0] for entry in tree))

    def _file(self, kind: str, digest: str) -> Path:
        return self._files / digest[:2] / (digest + ("x" if kind == "x" else ""))

    def _tree(self, name: str) -> Tree | None:
        try:
            data: Any = json.loads((self._trees / f"{name}.json").read_bytes())
        except (OSError, ValueError):
            return None
        return [(path, kind, value, size) for path, kind, value, size in data]

    # -- in use ------------------------------------------------------------------------------------------

    def unpack(self, name: str, job: JobFolder, account: Account | None) -> Path:
        """The folder in which a job runs, made at its first attempt. `Damaged` when something of it is gone."""
        work = job.path / "work"
        if work.is_dir():
            return work
        tree = self._tree(name)
        if tree is None:
            raise Damaged(f"snapshot {name[:12]} of the work folder is gone")
        partial = job.path / "work.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o755)
        # Root writes to read-only files too: what it runs gets copies, so that no job changes another's.
        shared = (os.geteuid() if account is None else account.uid) != 0
        for path, kind, value, size in tree:
            target = partial / path
            target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            if kind == "l":
                target.symlink_to(value)
            else:
                _put(self._file(kind, value), target, size, shared)
        if account is not None:
            for folder, _, _ in os.walk(partial):
                account.give(Path(folder))
        partial.rename(work)
        return work

    def sweep(self, used: Set[str], unused_s: float = UNUSED_S) -> None:
        """Remove snapshots that are not `used`, and files of no snapshot; what was touched lately stays."""
        with self._lock:
            before_s = time.time() - unused_s
            for path in [*self._trees.glob("*.json"), *self._trees.glob("*.partial")]:
                if path.stem not in used and path.stat().st_mtime < before_s:
                    path.unlink()
            trees = [self._tree(path.stem) or [] for path in self._trees.glob("*.json")]
            needed = {self._file(kind, value).name for tree in trees for _, kind, value, _ in tree if kind != "l"}
            for path in [*self._files.glob("*/*"), *self._files.glob(".partial")]:
                if path.name not in needed and path.stat().st_mtime < before_s:
                    path.unlink()


def _put(source: Path, target: Path, size: int, shared: bool) -> None:
    if not source.exists() or source.stat().st_size != size:
        raise Damaged(f"file '{target.name}' of the snapshot is missing or damaged")
    if shared:
        try:
            os.link(source, target)
            return
        except OSError:
            pass  # another file system, or too many links
    shutil.copyfile(source, target)
    target.chmod(0o755 if source.name.endswith("x") else 0o644)


def moved(paths: str, old: str, new: Path) -> str:
    """A list of folders such as PYTHONPATH; those of the work folder are replaced by those of the snapshot."""
    found = []
    for path in paths.split(os.pathsep):
        inside = path == old or path.startswith(old.rstrip("/") + "/")
        there = new / os.path.relpath(path, old) if inside else None
        found.append(str(there) if there is not None and there.exists() else path)
    return os.pathsep.join(found)
