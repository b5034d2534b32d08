"""Options of `up`: each holds on a platform or is refused there by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainmaster.model.errors import InputError
from trainmaster.service.local.home import Home
from trainmaster.service.local.platform import LocalPlatform
from trainmaster.service.options import ServiceOptions, check_options

HOME = Path("home")


@pytest.mark.parametrize(
    ("flag", "given"),
    [
        ("--nodes", {"nodes": "v100=4"}),
        ("--reset-nodes", {"reset_nodes": True}),
        ("--stop-jobs", {"stop_jobs": True}),
        ("--learn", {"learn": True}),
    ],
)
def test_kubernetes_refuses_what_only_one_machine_can_do(flag: str, given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{flag} cannot be used with --backend kubernetes"):
        check_options(ServiceOptions(HOME, backend="kubernetes", **given))


@pytest.mark.parametrize("backend", ["local", "simulated"])
@pytest.mark.parametrize(
    ("flag", "given"),
    [
        ("--kubeconfig", {"kubeconfig": Path("config")}),
        ("--namespace", {"namespace": "system"}),
        ("--agent-host", {"agent_host": "192.0.2.1"}),
        ("--agent-port", {"agent_port": 9000}),
        ("--lease", {"lease_s": 10.0}),
        ("--bind-teams", {"bind_teams": "own"}),
    ],
)
def test_one_machine_refuses_what_only_kubernetes_can_do(backend: str, flag: str, given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{flag} cannot be used with --backend {backend}"):
        check_options(ServiceOptions(HOME, backend=backend, **given))


def test_every_platform_keeps_history_for_as_long_as_asked(tmp_path: Path) -> None:
    from trainmaster.service.kubernetes.platform import KubernetesPlatform

    config = tmp_path / "config"
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "clusters: [{name: k, cluster: {server: 'https://127.0.0.1:1'}}]\n"
        "users: [{name: u, user: {token: t}}]\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n"
    )
    home = Home(tmp_path)
    for days in (None, 3.0):
        local = LocalPlatform(ServiceOptions(tmp_path, backend="simulated", keep_days=days), home)
        cluster = KubernetesPlatform(
            ServiceOptions(tmp_path, backend="kubernetes", kubeconfig=config, keep_days=days), home
        )
        assert (local.retention.days, cluster.retention.days) == ((30.0, 14.0) if days is None else (days, days))


@pytest.mark.parametrize(
    ("flag", "given"),
    [("--keep-days", {"keep_days": 0.0}), ("--round", {"round_s": -1.0}), ("--port", {"port": 70_000}),
     *(("--bind-teams", {"backend": "kubernetes", "bind_teams": text}) for text in ("", "x", "a=", "a=b c", "a=b,")),
     ("--log-level", {"log_level": "loud"}), ("--backend", {"backend": "slurm"})],
)  # fmt: skip
def test_values_that_cannot_be_are_refused(flag: str, given: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        check_options(ServiceOptions(HOME, **given))
    assert caught.value.column == flag
