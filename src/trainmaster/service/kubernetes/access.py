"""Who a bearer token belongs to and what they may do, as the API server says (TokenReview, SubjectAccessReview).

Answers are kept for a short time: a right that is taken away takes effect within `KEEP_S`.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, replace
from typing import Any

from trainmaster.backends.kubernetes.api import paths
from trainmaster.backends.kubernetes.api.client import ApiError, KubeClient
from trainmaster.backends.kubernetes.resources.crd import GROUP, PLURAL
from trainmaster.service.api.problems import Forbidden, Unauthorized, Unavailable
from trainmaster.service.local.tokens import OPERATOR, USER, Principal

KEEP_S = 30.0
MAX_KEPT = 10_000
_REMEDY = "Give a token of the cluster: TRAINMASTER_TOKEN=$(kubectl create token NAME)."


@dataclass(frozen=True)
class KubeUser(Principal):
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """What the authenticator adds, such as scopes: authorizers may decide by it."""


@dataclass(frozen=True)
class Right:
    """A verb on a kind of object; an empty namespace means all of them."""

    verb: str
    namespace: str = ""
    resource: str = PLURAL
    group: str = GROUP
    sub: str = ""

    def __str__(self) -> str:
        kind = f"{self.resource}/{self.sub}" if self.sub else self.resource
        where = f"in namespace '{self.namespace}'" if self.namespace else "in all namespaces"
        return f"{self.verb} {kind} {where}"


class KubernetesAccess:
    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._users: dict[bytes, tuple[float, KubeUser]] = {}
        self._answers: dict[tuple[KubeUser, Right], tuple[float, bool]] = {}
        self.reviews = 0

    async def identify(self, authorization: str | None) -> KubeUser:
        scheme, _, token = (authorization or "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > 16_384 or not token.isascii():
            raise Unauthorized(
                "no token", where="Authorization", expected="Authorization: Bearer TOKEN", remedy=_REMEDY
            )
        key = hashlib.sha256(token.encode()).digest()
        kept = self._users.get(key)
        if kept is not None and kept[0] > time.monotonic():
            return kept[1]
        user = await self._reviewed(token)
        _trim(self._users)
        self._users[key] = (time.monotonic() + KEEP_S, user)
        return user

    async def _reviewed(self, token: str) -> KubeUser:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        told = (await self._ask(paths.grouped("authentication.k8s.io", "v1", "tokenreviews"), body)).get("status") or {}
        if not told.get("authenticated"):
            raise Unauthorized(
                "the cluster does not know this token",
                where="Authorization",
                expected="a token that has not expired",
                remedy=_REMEDY,
            )
        user: dict[str, Any] = told.get("user") or {}
        groups = tuple(user.get("groups") or ())
        extra = tuple((key, tuple(values or ())) for key, values in sorted((user.get("extra") or {}).items()))
        name, uid = str(user.get("username", "")), str(user.get("uid", ""))
        plain = KubeUser(name, USER, groups=groups, uid=uid, extra=extra)
        runs_it = await self._allowed(plain, Right("update", resource="service"))
        return replace(plain, role=OPERATOR) if runs_it else plain

    async def may(self, who: Principal, right: Right) -> bool:
        if not isinstance(who, KubeUser):
            return True  # whoever holds the token of the service's own home folder runs it
        kept = self._answers.get((who, right))
        if kept is not None and kept[0] > time.monotonic():
            return kept[1]
        allowed = await self._allowed(who, right)
        _trim(self._answers)
        self._answers[who, right] = (time.monotonic() + KEEP_S, allowed)
        return allowed

    async def need(self, who: Principal, right: Right) -> None:
        if not await self.may(who, right):
            raise Forbidden(
                f"'{who.name}' may not {right}",
                expected="a role that allows it",
                remedy=f"Whoever runs the cluster can grant it: {grant_of(right)}.",
            )

    async def _allowed(self, who: KubeUser, right: Right) -> bool:
        wanted = {
            "verb": right.verb,
            "group": right.group,
            "resource": right.resource,
            "namespace": right.namespace,
            "subresource": right.sub,
        }
        extra = {key: list(values) for key, values in who.extra}
        user = {"user": who.name, "groups": list(who.groups), "uid": who.uid, "extra": extra}
        spec = {**user, "resourceAttributes": wanted}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        told = await self._ask(paths.grouped("authorization.k8s.io", "v1", "subjectaccessreviews"), body)
        return bool((told.get("status") or {}).get("allowed"))

    async def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.reviews += 1
        try:
            return await self._client.create(path, body, patience_s=5.0)
        except ApiError as error:
            raise Unavailable(
                f"the cluster cannot be asked who you are: {error}",
                expected="an API server that answers",
                remedy="Try again; if it stays so, check the rights of Trainmaster's service account.",
            ) from None


def grant_of(right: Right) -> str:
    """How an administrator gives it. The roles `view` and `edit` speak of TrainingJobs, not of nodes."""
    role = "view" if right.verb in ("get", "list", "watch") else "edit"
    if right.namespace:
        return f"kubectl create rolebinding ... --clusterrole={role} -n {right.namespace}"
    if right.resource == "trainingjobs":
        return f"kubectl create clusterrolebinding ... --clusterrole={role}"
    kind = f"{right.resource}.{right.group}" if right.group else right.resource
    return f"a ClusterRole (kubectl create clusterrole ... --verb={right.verb} --resource={kind}), bound"


def _trim(kept: dict[Any, tuple[float, Any]]) -> None:
    if len(kept) < MAX_KEPT:
        return
    now_s = time.monotonic()
    for key in [key for key, (until_s, _) in kept.items() if until_s <= now_s]:
        del kept[key]
    if len(kept) >= MAX_KEPT:
        kept.clear()
