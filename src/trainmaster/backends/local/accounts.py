"""Accounts of this machine under which jobs run, where the service is root and its operator has given a map of users.

The map is the file `accounts` of the home folder: `USER ACCOUNT` a line. USER is a name of the file `tokens`, or
`owner`; ACCOUNT is a login name or UID[:GID]. A job's members run as that account, with its groups, home folder and
a short environment. They can write to the job's checkpoint folder and speak to their own supervisor; nothing
else of the home folder is open to them.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainmaster.model.errors import InputError

MAX_ID = 2**32 - 2
_SEARCH, _ITS_GROUP = 0o711, 0o750
_PASSED_ON = frozenset({"PATH", "LANG", "LANGUAGE", "TZ", "PYTHONPATH", "LD_LIBRARY_PATH"})
_PASSED_ON_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "NCCL_")


@dataclass(frozen=True)
class Account:
    name: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    folder: str = "/"
    """Its HOME."""

    def become(self) -> None:
        """For a child between fork and exec. What it creates is by default readable, as after a login."""
        os.setgroups(self.groups)
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)
        os.umask(0o022)

    def environment(self, ours: Mapping[str, str]) -> dict[str, str]:
        """What of the service's environment is nobody's secret, and what a login would set."""
        kept = {
            name: value for name, value in ours.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)
        }
        return {**kept, "HOME": self.folder, "USER": self.name, "LOGNAME": self.name}

    def give(self, folder: Path) -> None:
        """A folder of its own, for a job to write to."""
        os.chown(folder, self.uid, self.gid)

    def let_in(self, *folders: Path) -> None:
        """Folders of ours that its group may pass through; files in them stay ours."""
        for folder in folders:
            os.chown(folder, -1, self.gid)
            folder.chmod(_ITS_GROUP)


def account_of(text: str) -> Account:
    """`ValueError` says what is wrong."""
    uid_text, _, gid_text = text.partition(":")
    if not uid_text.isdecimal():
        try:
            entry = pwd.getpwnam(text)
        except KeyError:
            raise ValueError(f"account '{text}' not found on this machine") from None
        groups = tuple(sorted(os.getgrouplist(entry.pw_name, entry.pw_gid)))
        return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir)
    if not uid_text.isascii() or not (gid_text or "0").isascii() or not (gid_text or "0").isdecimal():
        raise ValueError(f"invalid account '{text}'")
    uid, gid = int(uid_text), int(gid_text or uid_text)
    if max(uid, gid) > MAX_ID:
        raise ValueError(f"invalid account '{text}': ids go up to {MAX_ID}")
    return Account(_name_of(uid), uid, gid, (gid,))


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def read_accounts(path: Path) -> dict[str, Account]:
    expected = "USER ACCOUNT, where ACCOUNT is a login name or UID[:GID] of this machine"
    known: dict[str, Account] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = line.split()
        if len(parts) != 2:
            raise InputError("cannot be read", expected, file=path, line=number)
        if parts[0] in known:
            raise InputError(f"{parts[0]} has two accounts", "one line a user", file=path, line=number)
        try:
            known[parts[0]] = account_of(parts[1])
        except ValueError as error:
            raise InputError(str(error), expected, file=path, line=number) from None
    return known


def open_home(home: Path) -> None:
    """Let accounts pass through the home folder to what is theirs: they may enter folders whose names they know. What
    lies beside is for the service's user alone."""
    for entry in home.iterdir():
        if entry.name not in ("jobs", "checkpoints"):
            entry.chmod(entry.stat().st_mode & 0o700)
    for folder in (home, home / "jobs", home / "checkpoints"):
        folder.chmod(_SEARCH)


def closed_parent(home: Path) -> Path | None:
    """A folder above the home that accounts cannot pass through."""
    return next((folder for folder in home.resolve().parents if not folder.stat().st_mode & 0o001), None)
