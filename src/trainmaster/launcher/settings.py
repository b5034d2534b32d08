"""What a launcher is told by the environment of its container."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

NOTICE_PORT = 8644
"""Where a launcher hears of a new leader."""
IDENTITY = "TRAINMASTER_IDENTITY"
"""All variables of a pod's identity in one, as a JSON object: the API server keeps a record of every variable of every
pod, of who set it and of each change."""


class BadSettings(ValueError):
    """One sentence that says which variable is wrong."""


@dataclass(frozen=True)
class Settings:
    job_id: str
    generation: int
    member: str
    token: str = field(repr=False)
    services: tuple[str, ...]
    """`host:port`; names are resolved at every try."""
    host: str
    """Where peers reach this pod; empty: the address that reaches the service."""
    grace_s: float = 20.0
    """Between the order to end and SIGKILL, when the order comes from outside Trainmaster."""
    run_dir: str = ""
    """A folder that lives as long as the pod: shows whether the command was started before."""
    notice_port: int = NOTICE_PORT
    boot: str = field(default_factory=lambda: secrets.token_hex(8))


def unfolded(env: Mapping[str, str]) -> dict[str, str]:
    """The environment that the command gets: the variables that the pod's identity holds, each by itself."""
    plain = dict(env)
    folded = plain.pop(IDENTITY, "{}")
    try:
        held = json.loads(folded)
    except ValueError:
        held = None
    if not isinstance(held, dict) or not all(isinstance(value, str) for value in held.values()):
        raise BadSettings(f"{IDENTITY} is '{folded[:80]}'; expected a JSON object of texts")
    return {**plain, **held}


def read_settings(env: Mapping[str, str]) -> Settings:
    services = tuple(part.strip() for part in env.get("TRAINMASTER_SERVICE", "").split(",") if part.strip())
    for address in services:
        split_address(address)
    if not services:
        raise BadSettings("TRAINMASTER_SERVICE is not set; expected HOST:PORT[,HOST:PORT...] of the service")
    for name in ("TRAINMASTER_JOB_ID", "TRAINMASTER_MEMBER", "TRAINMASTER_AGENT_TOKEN"):
        if not env.get(name):
            raise BadSettings(f"{name} is not set; the launcher is started by Trainmaster, not by hand")
    return Settings(
        job_id=env["TRAINMASTER_JOB_ID"],
        generation=int(_number(env, "TRAINMASTER_GENERATION", 0)),
        member=env["TRAINMASTER_MEMBER"],
        token=env["TRAINMASTER_AGENT_TOKEN"],
        services=services,
        host=env.get("TRAINMASTER_POD_IP", ""),
        grace_s=_number(env, "TRAINMASTER_GRACE_S", 20.0),
        run_dir=env.get("TRAINMASTER_RUN_DIR", ""),
        notice_port=int(_number(env, "TRAINMASTER_NOTICE_PORT", NOTICE_PORT)),
    )


def split_address(address: str) -> tuple[str, int]:
    """`host:port`, `[v6]:port`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise BadSettings(f"invalid address '{address}' of the service: expected HOST:PORT")
    return host.strip("[]"), int(port)


def own_address(service: str) -> str:
    """The address of this machine by which it reaches the service: the one that peers can reach, too."""
    try:
        host, port = split_address(service)
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)  # sends nothing: it asks the routing table
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def _number(env: Mapping[str, str], name: str, default: float) -> float:
    try:
        return float(env.get(name) or default)
    except ValueError:
        raise BadSettings(f"{name} is '{env.get(name)}'; expected a number") from None
