"""Who may what, asked of a real API server: tokens, namespaces, operators, and clear refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from support.kubernetes.cluster import KubeCluster
from trainmaster.backends.kubernetes.api.client import KubeClient
from trainmaster.backends.kubernetes.api.config import load_config
from trainmaster.backends.kubernetes.resources.manifests import InstallOptions, manifests
from trainmaster.service.api.problems import Forbidden, Unauthorized, Unavailable
from trainmaster.service.kubernetes.access import KubernetesAccess, Right
from trainmaster.service.kubernetes.job_writer import KubernetesJobApi
from trainmaster.service.local.tokens import OPERATOR, USER, Tokens


@pytest.fixture(scope="module")
def users(fake_cluster: KubeCluster) -> dict[str, str]:
    """Tokens of alice (edits `vision`), bob (views `speech`), root (cluster-admin) and nobody."""
    kubectl = fake_cluster.kubectl
    roles = [thing for thing in manifests(InstallOptions()) if thing["kind"] in ("ClusterRole", "Namespace")]
    fake_cluster.apply(*roles)
    for name in ("vision", "speech", "people"):
        kubectl("create", "namespace", name, check=False)
    for name in ("alice", "bob", "root", "nobody"):
        kubectl("-n", "people", "create", "serviceaccount", name, check=False)
    bind = ("create", "rolebinding", "--serviceaccount")
    kubectl("-n", "vision", *bind[:2], "alice", "--clusterrole=edit", "--serviceaccount=people:alice", check=False)
    kubectl("-n", "speech", *bind[:2], "bob", "--clusterrole=view", "--serviceaccount=people:bob", check=False)
    kubectl(
        "create",
        "clusterrolebinding",
        "root",
        "--clusterrole=cluster-admin",
        "--serviceaccount=people:root",
        check=False,
    )
    return {
        name: f"Bearer {kubectl('-n', 'people', 'create', 'token', name).stdout.strip()}"
        for name in ("alice", "bob", "root", "nobody")
    }


def asked(cluster: KubeCluster, work: Callable[[KubernetesAccess], Awaitable[Any]], token: str | None = None) -> Any:
    async def run() -> Any:
        config = load_config(cluster.kubeconfig)
        if token is not None:
            config.certificate, config.token = None, token.removeprefix("Bearer ")
        client = await KubeClient(config).open()
        try:
            return await work(KubernetesAccess(client))
        finally:
            await client.close()

    return asyncio.run(run())


def test_tokens_say_who_asks(fake_cluster: KubeCluster, users: dict[str, str]) -> None:
    async def work(rights: KubernetesAccess) -> tuple[Any, Any, int]:
        alice, root = await rights.identify(users["alice"]), await rights.identify(users["root"])
        before = rights.reviews
        await rights.identify(users["alice"])
        return alice, root, rights.reviews - before

    alice, root, again = asked(fake_cluster, work)
    assert (alice.name, alice.role) == ("system:serviceaccount:people:alice", USER)
    assert root.role == OPERATOR
    assert again == 0, "an answer is kept for a while"


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer nonsense", "Basic abc", "Bearer " + "x" * 20_000, "Bearer ä"]
)
def test_what_is_no_token_is_refused(fake_cluster: KubeCluster, header: str | None) -> None:
    async def work(rights: KubernetesAccess) -> None:
        with pytest.raises(Unauthorized):
            await rights.identify(header)

    asked(fake_cluster, work)


def test_rights_are_those_of_the_roles(fake_cluster: KubeCluster, users: dict[str, str]) -> None:
    async def work(rights: KubernetesAccess) -> list[bool]:
        who = {name: await rights.identify(token) for name, token in users.items()}
        checks = [
            ("alice", Right("create", "vision")), ("alice", Right("delete", "vision")),
            ("alice", Right("get", "speech")),
            ("bob", Right("list", "speech")), ("bob", Right("patch", "speech")), ("bob", Right("list")),
            ("root", Right("list")), ("nobody", Right("get", "vision")),
        ]  # fmt: skip
        return [await rights.may(who[name], right) for name, right in checks]

    assert asked(fake_cluster, work) == [True, True, False, True, False, False, True, False]


def test_a_refusal_names_user_right_and_remedy(fake_cluster: KubeCluster, users: dict[str, str]) -> None:
    async def work(rights: KubernetesAccess) -> Forbidden:
        bob = await rights.identify(users["bob"])
        with pytest.raises(Forbidden) as caught:
            await rights.need(bob, Right("create", "vision"))
        return caught.value

    refusal = asked(fake_cluster, work)
    assert str(refusal) == "'system:serviceaccount:people:bob' may not create trainingjobs in namespace 'vision'"
    assert "-n vision" in refusal.problem.remedy


def test_a_service_without_the_right_to_ask_says_so(fake_cluster: KubeCluster, users: dict[str, str]) -> None:
    async def work(rights: KubernetesAccess) -> str:
        with pytest.raises(Unavailable) as caught:
            await rights.identify(users["alice"])
        return json.dumps(caught.value.problem.model_dump())

    told = asked(fake_cluster, work, token=users["nobody"])
    assert "tokenreviews" in told and "service account" in told


def test_a_job_of_another_namespace_is_refused_whether_it_exists_or_not(
    fake_cluster: KubeCluster, users: dict[str, str]
) -> None:
    class Nobody:
        async def ask(self, request: Any) -> Any:
            raise AssertionError(f"asked for {request}")

    async def work(rights: KubernetesAccess) -> list[str]:
        job_api = KubernetesJobApi(cast(Any, Nobody()), rights._client, Tokens(()), cast(Any, None))
        job_api.rights = rights
        bob = await rights.identify(users["bob"])
        told = []
        for attempt in (job_api.see_job(bob, "vision.secret"), job_api.act(bob, "vision.secret.0a1b2c3d", "cancel")):
            with pytest.raises(Forbidden) as caught:
                await attempt
            told.append(str(caught.value))
        return told

    seen, cancelled = asked(fake_cluster, work)
    assert seen == "'system:serviceaccount:people:bob' may not get trainingjobs in namespace 'vision'"
    assert "may not delete trainingjobs" in cancelled
