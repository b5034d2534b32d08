"""The map of users to accounts: what it may say, and what keeps a service with one from starting."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from trainmaster.backends.local import accounts as module
from trainmaster.backends.local.accounts import Account, account_of, open_home, read_accounts
from trainmaster.model.errors import InputError
from trainmaster.service.local import trust
from trainmaster.service.local.tokens import OPERATOR, USER, Principal
from trainmaster.service.local.trust import check_trust
from trainmaster.service.options import ServiceOptions

OWNER, ANN, BOB = Principal("owner", OPERATOR), Principal("ann", USER), Principal("bob", USER)


def test_accounts_are_names_or_numbers() -> None:
    assert account_of("61001") == Account("61001", 61001, 61001, (61001,))
    assert account_of("61001:7").gid == 7
    entry = pwd.getpwuid(os.getuid())
    found = account_of(entry.pw_name)
    assert (found.uid, found.gid, found.folder) == (entry.pw_uid, entry.pw_gid, entry.pw_dir)
    assert entry.pw_gid in found.groups


@pytest.mark.parametrize(
    "text", ["ann", "ann 1 2", "ann -1", "ann no-such-account", "ann 1:x", "ann ²", "ann 4294967295", "ann 1\nann 2"]
)
def test_a_map_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "accounts"
    path.write_text(f"# users\n\n{text}\n")
    with pytest.raises(InputError):
        read_accounts(path)


def _check(home: Path, accounts: dict[str, int], *, trust_users: bool = False, root_jobs: bool = False) -> None:
    known = {name: account_of(str(uid)) for name, uid in accounts.items()}
    check_trust([OWNER, ANN, BOB], known, ServiceOptions(home=home, trust_users=trust_users, root_jobs=root_jobs))


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(trust, "closed_parent", lambda _: None)


@pytest.mark.usefixtures("root")
def test_everybody_has_an_account_of_their_own_that_is_not_root(tmp_path: Path) -> None:
    _check(tmp_path, {"owner": 3, "ann": 1, "bob": 2})
    with pytest.raises(InputError, match="owner has no account"):
        _check(tmp_path, {"ann": 1, "bob": 2})
    with pytest.raises(InputError, match="jobs of owner would run as root"):
        _check(tmp_path, {"owner": 0, "ann": 1, "bob": 2})
    _check(tmp_path, {"owner": 0, "ann": 1, "bob": 2}, root_jobs=True)
    with pytest.raises(InputError, match="share the account"):
        _check(tmp_path, {"owner": 3, "ann": 1, "bob": 1})
    _check(tmp_path, {"owner": 3, "ann": 1, "bob": 1}, trust_users=True)


def test_only_root_runs_jobs_as_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(InputError, match="only root can run jobs as others"):
        _check(tmp_path, {"owner": 3, "ann": 1, "bob": 2})


@pytest.mark.usefixtures("root")
def test_a_home_that_accounts_cannot_reach_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "closed_parent", module.closed_parent)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(InputError, match="cannot reach the home folder"):
        _check(closed / "home", {"owner": 3, "ann": 1, "bob": 2})


def test_an_open_home_lets_pass_and_shows_nothing(tmp_path: Path) -> None:
    for name in ("jobs", "checkpoints", "logs"):
        (tmp_path / name).mkdir(mode=0o755)
    (tmp_path / "trainmaster.db").write_text("")
    (tmp_path / "trainmaster.db").chmod(0o644)
    open_home(tmp_path)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"jobs": 0o711, "checkpoints": 0o711, "logs": 0o700, "trainmaster.db": 0o600}
    assert tmp_path.stat().st_mode & 0o777 == 0o711
