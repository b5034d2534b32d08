"""Rights of the cluster's users: an answer holds for exactly the user that it was given for."""

from __future__ import annotations

import asyncio
from typing import Any

from trainmaster.service.kubernetes.access import KubernetesAccess, KubeUser, Right

RIGHT = Right("get", "vision")


class _Api:
    """Allows whom the extra `scope` allows."""

    def __init__(self, user: dict[str, Any] | None = None) -> None:
        self.user = user
        self.asked: list[dict[str, Any]] = []

    async def create(self, path: str, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        if path.endswith("tokenreviews"):
            return {"status": {"authenticated": True, "user": self.user}}
        self.asked.append(body["spec"])
        return {"status": {"allowed": body["spec"].get("extra", {}).get("scope") == ["all"]}}


def _user(**more: Any) -> KubeUser:
    return KubeUser("alice", "user", **more)


def test_answers_are_kept_by_uid_groups_and_extra_too() -> None:
    api = _Api()
    access = KubernetesAccess(api)  # type: ignore[arg-type]
    allowed = _user(extra=(("scope", ("all",)),))
    others = [_user(), _user(uid="1"), _user(groups=("dev",)), _user(extra=(("scope", ("one",)),))]

    async def run() -> list[bool]:
        return [await access.may(who, RIGHT) for who in (allowed, *others, allowed)]

    assert asyncio.run(run()) == [True, False, False, False, False, True]
    assert len(api.asked) == 5, "the same user is asked for once"


def test_what_the_authenticator_adds_is_asked_with() -> None:
    api = _Api({"username": "alice", "uid": "1", "groups": ["dev"], "extra": {"scope": ["all"]}})
    access = KubernetesAccess(api)  # type: ignore[arg-type]
    who = asyncio.run(access.identify("Bearer x"))
    assert who.extra == (("scope", ("all",)),)
    assert api.asked[0]["extra"] == {"scope": ["all"]}
