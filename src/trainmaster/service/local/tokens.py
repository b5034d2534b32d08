"""Who asks: tokens, and the two roles that they give. Tokens are compared by digest, never kept in the clear."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trainmaster.model.errors import InputError
from trainmaster.service.api.problems import Unauthorized

Role = Literal["user", "operator"]
USER: Role = "user"
OPERATOR: Role = "operator"
MIN_TOKEN = 16
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")


@dataclass(frozen=True)
class Principal:
    name: str
    role: Role
    teams: tuple[str, ...] | None = field(default=None, kw_only=True)
    """Teams that the operator has bound the user to, the default first; None: any may be named."""


class Tokens:
    """Known tokens. `secret, principal` pairs go in; only digests stay."""

    def __init__(self, known: Iterable[tuple[str, Principal]]) -> None:
        self._known = {_digest(secret): principal for secret, principal in known}

    def who(self, authorization: str | None) -> Principal:
        """The principal of an `Authorization: Bearer ...` header; `Unauthorized` when there is none."""
        scheme, _, secret = (authorization or "").partition(" ")
        # Looking up the digest of a guess tells nothing of how much of the guess was right.
        principal = self._known.get(_digest(secret.strip())) if scheme.lower() == "bearer" else None
        if principal is None:
            raise Unauthorized(
                "no valid token" if authorization else "no token",
                where="Authorization",
                expected="Authorization: Bearer TOKEN",
                remedy="The token of this service is in the file `token` of its home folder.",
            )
        return principal


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def new_token() -> str:
    return secrets.token_urlsafe(32)


def read_tokens(path: Path) -> list[tuple[str, Principal]]:
    """A file of further tokens: one a line, `ROLE NAME TOKEN [TEAM,TEAM...]`; lines that begin with # are comments.
    A user without teams is a team of their own name."""
    if path.stat().st_mode & 0o077:
        raise InputError("others may read the tokens", "a private file", f"Run: chmod 600 {path}", file=path)
    known: list[tuple[str, Principal]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = line.split()
        expected = (
            f"ROLE NAME TOKEN [TEAM,TEAM...], where ROLE is user or operator and TOKEN has {MIN_TOKEN} "
            "characters or more"
        )
        teams = tuple(parts[3].split(",")) if len(parts) == 4 else ()
        if len(parts) not in (3, 4) or not all(map(_NAME.match, teams)):
            raise InputError("cannot be read", expected, file=path, line=number)
        if parts[0] not in (USER, OPERATOR) or not _NAME.match(parts[1]):
            raise InputError("cannot be read", expected, file=path, line=number)
        if len(parts[2]) < MIN_TOKEN:
            raise InputError("the token is too short", expected, file=path, line=number)
        if parts[0] == OPERATOR:
            known.append((parts[2], Principal(parts[1], OPERATOR)))
        else:
            known.append((parts[2], Principal(parts[1], USER, teams=teams or (parts[1],))))
    return known
