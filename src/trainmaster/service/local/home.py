"""The home folder of a service: database, logs, jobs, address, token; and the lock that keeps a second one out.

trainmaster.db    the store (with -wal and -shm beside it)
address, token    how commands find the service; the token is readable by its owner alone
tokens            optional: further tokens, `ROLE NAME TOKEN` a line
accounts          optional, of a service of root: accounts under which users' jobs run, `USER ACCOUNT` a line
logs/             the service's own log, one JSON object a line
jobs/<id>/        logs, sockets and exit codes of a job's attempts
checkpoints/<id>/ what a job saves
snapshots/        copies of work folders: `backends/local/snapshots.py`
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Container, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

from trainmaster.backends.local.accounts import Account, read_accounts
from trainmaster.backends.local.run_folder import checkpoint_folder, job_folder
from trainmaster.engine.ports import number_of
from trainmaster.model.errors import InputError, TrainmasterError
from trainmaster.service.local.tokens import OPERATOR, Principal, new_token, read_tokens

DATABASE = "trainmaster.db"
LOCAL_OPERATOR = "owner"
_PRIVATE = ("token", "tokens", "accounts", "lock", DATABASE, "logs", "jobs", "checkpoints", "snapshots")
"""What would let another user act for the service if it were theirs."""


class HomeTaken(TrainmasterError):
    """Another service runs on this home."""


class Home:
    """`claim` before anything is written; `release` when the service has ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    @property
    def database(self) -> Path:
        return self.path / DATABASE

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def claim(self) -> None:
        """Create the folder if need be and lock it; raises `HomeTaken`."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.check_private()
            for folder in ("logs", "jobs", "checkpoints"):
                (self.path / folder).mkdir(mode=0o700, exist_ok=True)
            lock = (self.path / "lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise self._unusable(error) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            holder = lock.read().strip()
            lock.close()
            who = f" (process {holder})" if holder.isdigit() else ""
            at = self._read("address")
            raise HomeTaken(
                f"a service already runs on {self.path}{who}{f', at {at}' if at else ''}; "
                "use it, end it, or choose another folder with --home"
            ) from None
        self._lock = lock
        try:
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
        except OSError as error:
            raise self._unusable(error) from None

    def check_private(self) -> None:
        """Refuse a folder that others own or may write to: its token, database and jobs could be theirs."""
        for path in (self.path, *(self.path / name for name in _PRIVATE)):
            try:
                found = path.lstat() if path is not self.path else path.stat()
            except FileNotFoundError:
                continue
            if found.st_uid != os.geteuid():
                raise InputError(
                    f"belongs to user {found.st_uid}, the service runs as user {os.geteuid()}",
                    "a home that belongs to the service's own user",
                    "Choose another with --home.",
                    file=path,
                )
            if stat.S_ISLNK(found.st_mode):
                raise InputError("is a link", "a file or folder of its own", "Remove it, then start again.", file=path)
            if found.st_mode & 0o022:
                raise InputError(
                    f"others may write to it (mode {stat.S_IMODE(found.st_mode):o}), so its content may not be yours",
                    "a home that nobody else may write to",
                    f"Remove `token` and `tokens` in it if they are not yours, then: chmod go-w {path}",
                    file=path,
                )

    def _unusable(self, error: OSError) -> InputError:
        return InputError(
            f"cannot use it as a home: {error.strerror}",
            "a folder that may be written",
            "Choose another with --home.",
            file=self.path,
        )

    def release(self) -> None:
        """Give the lock back; the address goes, for nobody answers there any more."""
        if self._lock is not None:
            with suppress(OSError):
                (self.path / "address").unlink()
            self._lock.close()
            self._lock = None

    def _read(self, name: str) -> str:
        try:
            return (self.path / name).read_text(encoding="utf-8").strip()
        except OSError:
            return ""

    def token(self) -> str:
        """The private token of the owner, made when there is none."""
        present = self._read("token")
        if present:
            os.chmod(self.path / "token", 0o600)
            return present
        token = new_token()
        self.write("token", token)
        return token

    def write(self, name: str, text: str) -> None:
        """Whole or not at all, readable by the owner alone."""
        partial = self.path / f".{name}.partial"
        with suppress(FileNotFoundError):
            partial.unlink()
        try:
            handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text + "\n")
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(partial, self.path / name)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise InputError(
                f"cannot write: {error.strerror}",
                "room and the right to write",
                "Mend it, then start again.",
                file=self.path / name,
            ) from None

    def principals(self) -> list[tuple[str, Principal]]:
        """The owner's token and those of the file `tokens`."""
        known = [(self.token(), Principal(LOCAL_OPERATOR, OPERATOR))]
        if (self.path / "tokens").exists():
            known += read_tokens(self.path / "tokens")
        return known

    def accounts(self) -> dict[str, Account] | None:
        """By the names of principals; None: all jobs run as the service's user."""
        path = self.path / "accounts"
        return read_accounts(path) if path.exists() else None

    def remove_jobs(self, job_ids: Iterable[str]) -> None:
        """Delete logs and checkpoints of jobs that the history no longer holds."""
        for job_id in job_ids:
            for folder in (job_folder(self.path, job_id).path, checkpoint_folder(self.path, job_id)):
                shutil.rmtree(folder, ignore_errors=True)

    def orphans(self, known: Container[str], next_job: int) -> list[str]:
        """Jobs that have folders but no record: a crash came between the two. Only ids that were given already."""
        found = {entry.name for name in ("jobs", "checkpoints") for entry in (self.path / name).iterdir()}
        return sorted(
            name for name in found if name.startswith("job-") and name not in known and number_of(name) < next_job
        )

    @property
    def has_tokens_file(self) -> bool:
        return (self.path / "tokens").exists()
