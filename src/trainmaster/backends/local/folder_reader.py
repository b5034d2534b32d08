"""Reads a work folder for a snapshot, with the rights of the account whose job it is: a tar stream on standard output.

`python -m trainmaster.backends.local.folder_reader FOLDER SKIP [ACCOUNT]`: SKIP is a folder that is left out (the
service's home), ACCOUNT the JSON of an `Account`. Of a git checkout: tracked files and new ones that are not ignored;
of any other folder: all files. Links are kept as links and never followed. What is wrong is one line on standard
error, with exit code 2.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator

from trainmaster.backends.local.accounts import Account
from trainmaster.jobspec.limits import SNAPSHOT_BYTES, SNAPSHOT_FILES


class Refused(Exception):
    pass


def main() -> int:
    folder, skip, *account = sys.argv[1:]
    git = shutil.which("git")
    if account:
        data = json.loads(account[0])
        Account(**{**data, "groups": tuple(data["groups"])}).become()
    try:
        with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as stream:
            _write(stream, folder, skip, git)
    except Refused as why:
        sys.stderr.write(f"{why}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"cannot read '{error.filename or folder}': {error.strerror}\n")
        return 2
    return 0


def _write(stream: tarfile.TarFile, folder: str, skip: str, git: str | None) -> None:
    base, skip = os.path.realpath(folder), os.path.realpath(skip)
    if not stat.S_ISDIR(os.stat(base).st_mode):
        raise Refused(f"work folder '{folder}' is not a folder")
    count = size = 0
    for path in _paths(base, git):
        whole = os.path.join(base, path)
        if os.path.commonpath([whole, skip]) == skip:
            continue
        entry = tarfile.TarInfo(path)
        try:
            mode = os.lstat(whole).st_mode
        except FileNotFoundError:
            continue  # tracked, and deleted here
        if stat.S_ISLNK(mode):
            entry.type, entry.linkname = tarfile.SYMTYPE, _target(base, whole)
            stream.addfile(entry)
        elif stat.S_ISREG(mode):
            with os.fdopen(os.open(whole, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                entry.size, entry.mode = os.fstat(file.fileno()).st_size, mode & 0o100
                size += entry.size
                if size <= SNAPSHOT_BYTES:
                    stream.addfile(entry, file)
        count += 1
        if count > SNAPSHOT_FILES or size > SNAPSHOT_BYTES:
            raise Refused(
                f"the work folder is too large for a snapshot: at most {SNAPSHOT_FILES} files and "
                f"{SNAPSHOT_BYTES >> 20} MiB; name what is not code in .gitignore, or submit from a smaller folder"
            )


def _paths(base: str, git: str | None) -> Iterator[str]:
    """Relative to the base. Files that git lists; without git, or outside a checkout, all."""
    listed = None
    if git is not None:
        asked = [
            git,
            "-c",
            "core.fsmonitor=false",
            "-C",
            base,
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]
        done = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        listed = {os.fsdecode(name) for name in done.stdout.split(b"\0") if name} if done.returncode == 0 else None
    if listed is None:
        yield from _walk(base, "")
        return
    for path in sorted(listed):
        whole = os.path.join(base, path)
        if os.path.isdir(whole) and not os.path.islink(whole):  # a submodule, or a checkout in the checkout
            yield from _walk(base, path)
        else:
            yield path


def _walk(base: str, below: str) -> Iterator[str]:
    def fail(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(os.path.join(base, below), onerror=fail):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = sorted(name for name in folders if name != ".git" and name not in links)
        for name in sorted([*files, *links]):
            yield os.path.relpath(os.path.join(folder, name), base)


def _target(base: str, link: str) -> str:
    """Where a link leads when the folder has moved: within it relative, beyond it absolute."""
    target = os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link)))
    if target == base or target.startswith(base + os.sep):
        return os.path.relpath(target, os.path.dirname(link))
    return target


if __name__ == "__main__":
    sys.exit(main())
