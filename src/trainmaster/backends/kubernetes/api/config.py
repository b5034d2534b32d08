"""Where the API server is and who we are there: a kubeconfig file, or the files that every pod is given."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trainmaster.backends.kubernetes.api.exec_credentials import ExecCredentials, LoginFailed
from trainmaster.model.errors import InputError

POD_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_AGE_S = 60.0
"""A token in a file is replaced before it expires; it is read again after this time."""
REMEDY = "Give --kubeconfig FILE, set KUBECONFIG, or run inside a cluster."


@dataclass
class KubeConfig:
    """`server` is a URL. A token comes from `token_file`, where there is one, and is read again as it ages."""

    server: str
    namespace: str = "default"
    token: str = ""
    token_file: Path | None = None
    ca: str | None = None
    """PEM text of the authorities that the server's certificate is checked against; None: the system's."""
    certificate: tuple[Path, Path] | None = None
    insecure: bool = False
    in_cluster: bool = False
    login: ExecCredentials | None = None
    """A program that gives tokens."""
    _read_s: float = field(default=float("-inf"), repr=False)

    def ssl_context(self) -> ssl.SSLContext | bool:
        if not self.server.startswith("https:"):
            return False
        context = ssl.create_default_context(cadata=self.ca)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate is not None:
            context.load_cert_chain(*self.certificate)
        return context

    def bearer(self) -> str:
        """The present token; empty: we are known by a certificate."""
        if self.login is not None:
            return self.login.token()
        if self.token_file is not None and time.monotonic() - self._read_s > TOKEN_AGE_S:
            self.token = self.token_file.read_text(encoding="utf-8").strip()
            self._read_s = time.monotonic()
        return self.token


def load_config(kubeconfig: Path | None = None, context: str | None = None) -> KubeConfig:
    """The file that was named, else those of `$KUBECONFIG`, else the pod's own, else `~/.kube/config`."""
    if kubeconfig is not None:
        return _from_file(kubeconfig, context)
    for name in filter(None, os.environ.get("KUBECONFIG", "").split(os.pathsep)):
        if Path(name).exists():
            return _from_file(Path(name), context)
    if os.environ.get("KUBERNETES_SERVICE_HOST") and (POD_FOLDER / "token").exists():
        return _from_pod()
    usual = Path.home() / ".kube" / "config"
    if usual.exists():
        return _from_file(usual, context)
    raise InputError("no cluster is configured", "a kubeconfig file", REMEDY, column="--kubeconfig")


def _from_pod() -> KubeConfig:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    shown = f"[{host}]" if ":" in host else host
    namespace = POD_FOLDER / "namespace"
    return KubeConfig(
        f"https://{shown}:{port}",
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        token_file=POD_FOLDER / "token",
        ca=(POD_FOLDER / "ca.crt").read_text(),
        in_cluster=True,
    )


def _from_file(path: Path, context: str | None) -> KubeConfig:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"cannot be read: {error}", "a kubeconfig file", REMEDY, file=path) from None
    if not isinstance(data, dict):
        raise InputError("not a kubeconfig", "a mapping with clusters, users and contexts", REMEDY, file=path)
    chosen = context or data.get("current-context") or ""
    entry = _named(data, "contexts", "context", chosen, path)
    cluster = _named(data, "clusters", "cluster", entry.get("cluster", ""), path)
    user = _named(data, "users", "user", entry.get("user", ""), path) if entry.get("user") else {}
    if not cluster.get("server"):
        raise InputError(f"cluster '{entry.get('cluster')}' has no server", "a URL", REMEDY, file=path)
    if user.get("auth-provider"):
        raise InputError(
            f"user '{entry.get('user')}' logs in by an auth-provider",
            "exec, a token or a client certificate",
            "Make a service account and use its token.",
            file=path,
        )
    token_file = user.get("tokenFile")
    return KubeConfig(
        server=str(cluster["server"]).rstrip("/"),
        namespace=entry.get("namespace") or "default",
        token=user.get("token") or "",
        token_file=None if not token_file else path.parent / token_file,
        ca=_text(cluster, "certificate-authority", path),
        certificate=_certificate(user, path),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        login=_login(user, path),
    )


def _login(user: dict[str, Any], path: Path) -> ExecCredentials | None:
    """Asked at once, so that what is wrong is told when the file is read."""
    if not user.get("exec"):
        return None
    try:
        login = ExecCredentials(user["exec"], path.parent)
        login.token()
    except LoginFailed as error:
        raise InputError(str(error), "a program that prints an ExecCredential", REMEDY, file=path) from None
    except (AttributeError, KeyError, TypeError):
        raise InputError("invalid exec entry", "command, args and env: [{name, value}]", REMEDY, file=path) from None
    return login


def _named(data: dict[str, Any], plural: str, singular: str, name: str, path: Path) -> dict[str, Any]:
    for item in data.get(plural) or ():
        if isinstance(item, dict) and item.get("name") == name:
            return item.get(singular) or {}
    raise InputError(f"{singular} '{name}' not found", f"one that is listed under {plural}", REMEDY, file=path)


def _text(part: dict[str, Any], key: str, path: Path) -> str | None:
    if part.get(f"{key}-data"):
        return _decoded(part[f"{key}-data"], key, path).decode()
    return (path.parent / part[key]).read_text() if part.get(key) else None


def _decoded(data: str, key: str, path: Path) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"{key}-data cannot be read: {error}", "base64", REMEDY, file=path) from None


def _certificate(user: dict[str, Any], path: Path) -> tuple[Path, Path] | None:
    if user.get("client-certificate") and user.get("client-key"):
        return path.parent / user["client-certificate"], path.parent / user["client-key"]
    if not user.get("client-certificate-data") or not user.get("client-key-data"):
        return None
    # The ssl module takes certificates from files only; these live as long as the process.
    import atexit
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="trainmaster-kube-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    pair = folder / "cert.pem", folder / "key.pem"
    for file, key in zip(pair, ("client-certificate", "client-key"), strict=True):
        file.touch(mode=0o600)
        file.write_bytes(_decoded(user[f"{key}-data"], key, path))
    return pair
