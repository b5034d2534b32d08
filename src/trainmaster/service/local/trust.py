"""Whom the jobs of a service on one machine can harm, in words for `up` and `doctor`.

Jobs run as the service's own user. So a job can read that user's files, the operator's token and what other users'
jobs were started with. Nothing here keeps users apart; what it does is to say so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from trainmaster.model.errors import InputError
from trainmaster.service.local.tokens import USER, Principal

FLAG = "--trust-users"


def warnings(uid: int, users: int) -> list[str]:
    """What an operator should know before others submit; empty: nothing."""
    told = []
    if uid == 0:
        told.append("it runs as root, and so does every job: a job can do anything to this machine")
    if users:
        whose = "1 user shares" if users == 1 else f"{users} users share"
        told.append(f"{whose} this service and must trust each other: jobs can read its token and each other's files")
    return told


def users_among(principals: Iterable[Principal]) -> int:
    return len({principal.name for principal in principals if principal.role == USER})


def check_trust(principals: Iterable[Principal], trusted: bool, file: Path) -> None:
    """Refuse tokens of further users unless the operator has said that they trust each other."""
    users = users_among(principals)
    if users and not trusted:
        raise InputError(
            f"holds tokens of {users} users, and jobs run as the service's own user (uid {os.geteuid()}): "
            "each user's jobs can read the operator's token and other users' files",
            f"users who trust each other, and the flag {FLAG}",
            f"Start with {FLAG} if they do; else give each user a service and a login of their own.",
            file=file,
        )
