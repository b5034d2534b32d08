"""Where the service is and what opens it: `--home`, the environment, or the user's home folder."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trainmaster.client.errors import NoService
from trainmaster.model.errors import InputError

if TYPE_CHECKING:
    from trainmaster.backends.kubernetes.api.config import KubeConfig


@dataclass(frozen=True, slots=True)
class Address:
    url: str
    token: str = field(repr=False)
    source: str
    """Where the address was found, for messages."""
    through: KubeConfig | None = field(default=None, repr=False, compare=False)
    """The cluster whose API server passes requests on to the service."""

    @property
    def local(self) -> bool:
        return urlsplit(self.url).hostname in ("127.0.0.1", "localhost", "::1")


def home_folder(home: Path | None) -> Path:
    if home is not None:
        return home.expanduser()
    named = os.environ.get("TRAINMASTER_HOME")
    return Path(named).expanduser() if named else Path.home() / ".trainmaster"


def find_address(home: Path | None) -> Address:
    """`--home` first, then TRAINMASTER_URL (with TRAINMASTER_TOKEN), then the files in the home folder.

    `TRAINMASTER_URL=kube:` is the service in the cluster of the kubeconfig: see `kube_address`.
    """
    url = os.environ.get("TRAINMASTER_URL", "")
    if url.startswith("kube:") and home is None:
        from trainmaster.client.kube_address import kube_address

        return kube_address(url)
    if url and home is None:
        return Address(checked(url, "TRAINMASTER_URL"), os.environ.get("TRAINMASTER_TOKEN", ""), "TRAINMASTER_URL")
    folder = home_folder(home)
    at = _read(folder / "address")
    if at is None:
        raise NoService(f"no service found: {folder} has no address; start one with `trainmaster up`")
    token = _read(folder / "token")
    if token is None:
        raise NoService(f"no token in {folder}: the service has not finished starting, or another user's home is meant")
    return Address(checked(at, str(folder / "address")), token, str(folder / "address"))


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise InputError("not a folder", "the folder of a service", column=str(path.parent)) from None
    except UnicodeDecodeError:
        raise InputError("is not text", "what `trainmaster up` wrote", file=path) from None
    except OSError as error:
        raise NoService(f"{path} cannot be read: {error.strerror}; it belongs to whoever runs the service") from None


def checked(url: str, source: str) -> str:
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        fine = False
    if not fine:
        raise InputError(f"invalid service address '{url}'", "such as http://127.0.0.1:8642", column=source)
    return url.rstrip("/")
