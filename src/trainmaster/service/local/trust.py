"""Whom the jobs of a service on one machine can harm: what is refused at start, and what `up` and `doctor` say.

Jobs run as the service's own user, unless it is root and has a map of users to accounts. As the service's user a job
can read the operator's token and what other users' jobs were started with: then users must trust each other.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from trainmaster.backends.local.accounts import Account, closed_parent
from trainmaster.model.errors import InputError
from trainmaster.service.local.tokens import USER, Principal
from trainmaster.service.options import ServiceOptions

FLAG = "--trust-users"
ROOT_FLAG = "--root-jobs"
MAP = "accounts"


def warnings(uid: int, users: int, mapped: bool) -> list[str]:
    """What an operator should know before others submit; empty: nothing."""
    if mapped:
        return []
    told = []
    if uid == 0:
        told.append("it runs as root, and so does every job: a job can do anything to this machine")
    if users:
        whose = "1 user shares" if users == 1 else f"{users} users share"
        told.append(f"{whose} this service and must trust each other: jobs can read its token and each other's files")
    return told


def users_among(principals: Iterable[Principal]) -> int:
    return len({principal.name for principal in principals if principal.role == USER})


def check_trust(
    principals: Iterable[Principal], accounts: Mapping[str, Account] | None, options: ServiceOptions
) -> None:
    """Refuse tokens of further users unless their jobs are kept apart, or they trust each other."""
    principals = [*principals]
    if accounts is not None:
        _check_accounts({principal.name for principal in principals}, accounts, options)
    elif (users := users_among(principals)) and not options.trust_users:
        raise InputError(
            f"holds tokens of {users} users, and jobs run as the service's own user (uid {os.geteuid()}): "
            "each user's jobs can read the operator's token and other users' files",
            f"a map of users to accounts, or users who trust each other and the flag {FLAG}",
            f"As root, write the file `{MAP}`: docs/security.md. Or start with {FLAG}; or give each user a service.",
            file=options.home / "tokens",
        )


def _check_accounts(names: set[str], accounts: Mapping[str, Account], options: ServiceOptions) -> None:
    def refuse(what: str, expected: str, remedy: str, file: Path = options.home / MAP) -> InputError:
        return InputError(what, expected, remedy, file=file)

    if os.geteuid() != 0:
        raise refuse(
            f"the service runs as user {os.geteuid()}, and only root can run jobs as others",
            "a service of root",
            f"Start it as root, or remove the file `{MAP}`.",
        )
    if missing := sorted(names - accounts.keys()):
        raise refuse(
            f"{missing[0]} has no account", "one for each name of the file `tokens`, and for `owner`", "Add it."
        )
    used = {name: accounts[name] for name in sorted(names)}
    for name, account in used.items():
        if 0 in (account.uid, account.gid, *account.groups) and not options.root_jobs:
            raise refuse(
                f"jobs of {name} would run as root", f"another account, or the flag {ROOT_FLAG}", "Choose another."
            )
        twin = next((other for other in used if other != name and used[other].uid == account.uid), None)
        if twin is not None and not options.trust_users:
            raise refuse(
                f"{name} and {twin} share the account {account.name}: their jobs can read each other's files",
                f"an account for each user, or the flag {FLAG}",
                "Choose another.",
            )
    if (parent := closed_parent(options.home)) is not None:
        raise refuse(
            "accounts cannot reach the home folder through it",
            "folders that others may enter, such as /var/lib",
            "Choose another home with --home, such as /var/lib/trainmaster.",
            parent,
        )
