"""Teams that the jobs of a namespace may count for, as the operator binds them: `up --bind-teams`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainmaster.model.errors import InputError

FLAG = "--bind-teams"
OWN = "own"
Bindings = Mapping[str, tuple[str, ...]]
_BINDING = re.compile(r"([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)=([^=+,\s]+(?:\+[^=+,\s]+)*)")


def parse_bindings(text: str) -> Bindings:
    """`own`, or `NAMESPACE=TEAM+TEAM,NAMESPACE=TEAM`."""
    found: dict[str, tuple[str, ...]] = {}
    for part in () if text == OWN else text.split(","):
        match = _BINDING.fullmatch(part.strip())
        if match is None:
            expected = f"'{OWN}' or NAMESPACE=TEAM+TEAM,NAMESPACE=TEAM"
            raise InputError(f"invalid binding '{part[:80]}'", expected, column=FLAG)
        found[match[1]] = tuple(match[3].split("+"))
    return found


def team_of(namespace: str, asked: str | None, bindings: Bindings | None) -> str:
    """The team that a job counts for: the one it names, or the first of its namespace. Where teams are bound, a
    namespace that is not listed has the team of its own name alone; None: they are not."""
    if bindings is None:
        return asked or namespace
    teams = bindings.get(namespace, (namespace,))
    if asked is not None and asked not in teams:
        raise InputError(
            f"namespace '{namespace}' may not submit for team '{asked[:80]}'",
            " or ".join(teams),
            f"The operator binds namespaces to teams with {FLAG}.",
            column="spec.entity",
        )
    return asked or teams[0]
