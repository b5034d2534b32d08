"""Workers that compute together under one membership: a torch process group of their own, quickly made and dropped.

The group is built directly (not as torch's default group), so that the next one can be made by a background
thread while training goes on with the present one; a dropped group closes its connections, which is how the
other survivors of a death come to know of it. Gloo on CPU, NCCL on CUDA.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from trainmaster.gang.protocol import Membership
from trainmaster.runtime.errors import WorldSizeError
from trainmaster.runtime.process_env import ProcessEnv

_c10d: Any = dist  # its stores and options are public but not in its type stubs


class GroupFault(Exception):
    """A collective failed: a peer died, or did not answer in time. Survivors come together anew.

    A group closes its connections when nothing refers to it any more, and the frames of a traceback refer to
    much: keep the text of a fault, not the fault, and drop the group outside of the `except` block.
    """


class Group:
    """`rank` of `world` workers; every call is collective: all members make it, in the same order."""

    def __init__(
        self, version: int, rank: int, world: int, process_group: Any, store: Any, device: torch.device
    ) -> None:
        self.version = version
        self.rank = rank
        self.world = world
        self.device = device
        self._group = process_group
        self._store = store  # its server lives in rank 0 and must outlive the building of the group

    def start_sum(self, tensor: torch.Tensor) -> Any:
        """Begin to sum a tensor over the workers; the result is there after `finish`."""
        if self._group is None:
            return None
        try:
            return self._group.allreduce([tensor])
        except RuntimeError as error:
            raise GroupFault(str(error)) from error

    @staticmethod
    def finish(work: Any) -> None:
        if work is None:
            return
        try:
            work.wait()
        except RuntimeError as error:
            raise GroupFault(str(error)) from error

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        self.finish(self.start_sum(tensor))
        return tensor

    def broadcast(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        if self._group is None:
            return tensor
        options = _c10d.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        try:
            work = self._group.broadcast([tensor], options)
        except RuntimeError as error:
            raise GroupFault(str(error)) from error
        self.finish(work)
        return tensor

    def drop(self) -> None:
        """Close the connections; whatever is still under way in the group fails, here and at the peers."""
        group, self._group, self._store = self._group, None, None
        if group is not None and hasattr(group, "abort"):
            with _quiet():
                group.abort()
        del group


class _quiet:
    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, RuntimeError)


def alone(device: torch.device) -> Group:
    """One worker, no agent, no torchrun."""
    return Group(0, 0, 1, None, None, device)


def of_torchrun(place: ProcessEnv, device: torch.device, timeout_s: float) -> Group:
    """The fixed group that `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` describe."""
    if place.world_size == 1:
        return alone(device)
    if not place.master_addr or not place.master_port:
        raise WorldSizeError(
            f"WORLD_SIZE is {place.world_size} but MASTER_ADDR and MASTER_PORT are not set; start the script by "
            "torchrun or `trainmaster submit`, or unset WORLD_SIZE"
        )
    try:
        store, rank, world = next(_c10d.rendezvous("env://", timeout=timedelta(seconds=timeout_s)))
        group = _make(_c10d.PrefixStore("trainmaster", store), rank, world, place.master_addr, device, timeout_s)
    except RuntimeError as error:
        raise WorldSizeError(
            f"WORLD_SIZE is {place.world_size}, but the workers did not come together within {timeout_s:g} s at "
            f"{place.master_addr}:{place.master_port}; start all of them ({error})"
        ) from error
    return Group(0, rank, world, group, store, device)


def of_membership(membership: Membership, member: str, device: torch.device, timeout_s: float) -> Group:
    """Blocks until every worker of the membership is there; `GroupFault` when that fails."""
    own = membership.find(member)
    assert own is not None, f"{member} is not listed in membership {membership.version}"
    world = len(membership.workers)
    if world == 1:
        return Group(membership.version, 0, 1, None, None, device)
    timeout = timedelta(seconds=timeout_s)
    try:
        store = _c10d.TCPStore(
            membership.master_addr,
            membership.master_port,
            world,
            is_master=own.rank == 0,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=_listener(membership) if own.rank == 0 else None,
        )
        group = _make(store, own.rank, world, membership.master_addr, device, timeout_s)
    except (RuntimeError, OSError) as error:
        raise GroupFault(f"membership {membership.version}: {error}") from error
    return Group(membership.version, own.rank, world, group, store, device)


def _listener(membership: Membership) -> int | None:
    """Where the members meet: torch would listen on all addresses, and its store knows no secret. On one machine only
    that machine is let in; None: members are on several, whose network must keep others out."""
    if not membership.master_addr.startswith("127."):
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((membership.master_addr, membership.master_port))
        return listener.detach()


def _make(store: Any, rank: int, world: int, master_addr: str, device: torch.device, timeout_s: float) -> Any:
    timeout = timedelta(seconds=timeout_s)
    if device.type == "cuda":
        options = _c10d.ProcessGroupNCCL.Options()
        options._timeout = timeout
        group = _c10d.ProcessGroupNCCL(store, rank, world, options)
        group.eager_connect_single_device(device)
        return group
    options = _c10d.ProcessGroupGloo._Options()
    options._timeout = timeout
    options._devices = [_c10d.ProcessGroupGloo.create_device(hostname=_own_address(master_addr))]
    return _c10d.ProcessGroupGloo(store, rank, world, options)


def _own_address(master_addr: str) -> str:
    """The address of this machine by which it reaches the master: the one peers can reach, too."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((master_addr, 9))  # sends nothing: a datagram socket only picks its route
            return probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"


class Preparation:
    """The group of one membership, made by a background thread while training goes on."""

    def __init__(self, membership: Membership, make: Callable[[], Group | None]) -> None:
        self.membership = membership
        self.group: Group | None = None
        self.fault: GroupFault | None = None
        self.took_s = 0.0
        self._make = make
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"trainmaster-group-{membership.version}", daemon=True)
        self._thread.start()

    @property
    def ready(self) -> bool:
        return self._done.is_set() and self.fault is None

    @property
    def over(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout_s: float) -> bool:
        return self._done.wait(timeout_s)

    def _run(self) -> None:
        began_s = time.perf_counter()
        try:
            self.group = self._make()
        except GroupFault as fault:
            self.fault = fault
        self.took_s = time.perf_counter() - began_s
        self._done.set()
