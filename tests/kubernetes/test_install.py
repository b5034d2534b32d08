"""The manifests and the Helm chart: the same objects from either, and nothing that `restricted` would refuse."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from trainmaster.backends.kubernetes.resources.chart import chart_files
from trainmaster.backends.kubernetes.resources.manifests import InstallOptions, manifests
from trainmaster.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "trainmaster"


@pytest.fixture(scope="module")
def helm() -> str:
    found = shutil.which("helm")
    if found is not None:
        return found
    tool = ROOT.parent / "shared" / "k8s" / "cluster"
    if not tool.exists():
        pytest.skip("helm is not installed")
    folder = subprocess.run([tool, "bin"], check=True, capture_output=True, text=True).stdout.strip()
    if not (Path(folder) / "helm").exists():
        pytest.skip("helm is not installed")
    return str(Path(folder) / "helm")


def rendered(helm: str, *settings: str) -> list[dict[str, Any]]:
    command = [
        helm,
        "template",
        "trainmaster",
        str(CHART),
        "--namespace",
        "trainmaster-system",
        "--kube-version",
        "1.36.0",
    ]
    made = subprocess.run([*command, *settings], check=True, capture_output=True, text=True).stdout
    return [thing for thing in yaml.safe_load_all(made) if thing]


def by_name(things: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    keyed = {}
    for thing in things:
        thing["metadata"].pop("annotations", None)
        keyed[thing["kind"], thing["metadata"]["name"]] = thing
    return keyed


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (InstallOptions(), []),
        (InstallOptions(replicas=3, policy="srtf", log_level="debug"), ["replicas=3", "policy=srtf", "logLevel=debug"]),
        (InstallOptions(service_monitor=True), ["serviceMonitor.enabled=true"]),
        (
            InstallOptions(image="registry.local/tm:v7", pull_policy="Never"),
            ["image.repository=registry.local/tm", "image.tag=v7", "image.pullPolicy=Never"],
        ),
    ],
)  # fmt: skip
def test_the_chart_makes_what_the_manifests_are(helm: str, options: InstallOptions, settings: list[str]) -> None:
    chart = by_name(rendered(helm, *(part for text in settings for part in ("--set", text))))
    own = by_name(manifests(options))
    own.pop(("Namespace", options.namespace))  # helm makes namespaces itself, by --create-namespace
    assert chart.keys() == own.keys()
    for key, thing in own.items():
        assert chart[key] == thing, key


def test_generated_files_of_the_chart_are_current() -> None:
    for path, text in chart_files().items():
        assert (CHART / path).read_text(encoding="utf-8") == text, (
            f"{path} is old: run `python -m trainmaster.backends.kubernetes.resources.chart {CHART.relative_to(ROOT)}`"
        )


@pytest.mark.parametrize(
    ("setting", "told"),
    [("replicas=0", "/replicas"), ("plicy=fifo", "plicy"),
     ("logLevel=loud", "/logLevel"), ("image.tag=", "/image/tag")],
)  # fmt: skip
def test_values_that_cannot_be_are_refused(helm: str, setting: str, told: str) -> None:
    made = subprocess.run(
        [helm, "template", "t", str(CHART), "--kube-version", "1.36.0", "--set", setting],
        capture_output=True,
        text=True,
    )
    assert made.returncode != 0
    assert told in made.stderr


def test_the_pod_is_restricted() -> None:
    """The `restricted` pod security standard, point by point; the API server checks it again when it is installed."""
    deployment = next(thing for thing in manifests(InstallOptions()) if thing["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        own = container["securityContext"]
        assert own["readOnlyRootFilesystem"] is True
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
    assert all("emptyDir" in volume for volume in pod["volumes"])
    assert not pod.get("hostNetwork")


def test_rights_name_their_resources() -> None:
    for thing in manifests(InstallOptions()):
        for rule in thing.get("rules", ()):
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])
            secrets = "secrets" in rule["resources"]
            assert not secrets or thing["kind"] == "Role", "secrets of other namespaces are none of our business"


def test_the_command_prints_them() -> None:
    made = CliRunner().invoke(app, ["kube", "manifests", "--replicas", "1", "-o", "json"])
    assert made.exit_code == 0, made.output
    things = json.loads(made.stdout)["items"]
    assert things == json.loads(json.dumps(manifests(InstallOptions(replicas=1))))
    text = CliRunner().invoke(app, ["kube", "manifests", "--only-crd"])
    assert [thing["kind"] for thing in yaml.safe_load_all(text.stdout)] == ["CustomResourceDefinition"]


@pytest.mark.parametrize(
    "arguments",
    [["--replicas", "0"], ["--policy", "nonsense"], ["--namespace", "No Such"], ["--memory", "lots"], ["-o", "xml"],
     ["--image", "a b"]],
)  # fmt: skip
def test_bad_options_are_one_message(arguments: list[str]) -> None:
    made = CliRunner().invoke(app, ["kube", "manifests", *arguments])
    assert made.exit_code == 2
    assert made.stderr.startswith("error: ")
