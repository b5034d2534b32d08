"""Which of several processes leads: a Lease object that the leader renews and others wait for.

The leader counts from the moment it *sent* the renewal that succeeded and gives up before the lease ends; others count
from the moment they *saw* it change, and wait for its whole length. So when another begins, the last has stopped, as
long as clocks run at about the same speed; no clock need show the same time.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from trainmaster.backends.kubernetes.api import paths
from trainmaster.backends.kubernetes.api.client import ApiError, Conflict, KubeClient, NotFound, Object

ADDRESS = "trainmaster.dev/address"
"""Annotation of the Lease: where the leader answers."""


@dataclass(frozen=True)
class ElectionRule:
    lease_s: float = 10.0
    give_up_s: float = 7.0
    """After so long without a renewal the leader stops acting; the rest is for clocks and for writes under way."""
    renew_s: float = 2.0
    request_s: float = 3.0


class Election:
    """`run` until cancelled. `on_lead()` and `on_lose()` are called within the loop; `leading()` from anywhere."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        *,
        address: str = "",
        rule: ElectionRule | None = None,
        on_lead: Callable[[], None],
        on_lose: Callable[[], None],
        renewed: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`renewed(monotonic_s)` is told until when we may act, at every renewal."""
        self._client = client
        self._path = paths.leases(namespace)
        self._name = name
        self.identity = identity
        self._address = address
        self.rule = rule or ElectionRule()
        self._on_lead = on_lead
        self._on_lose = on_lose
        self._renewed = renewed
        self._seen: tuple[str, str] | None = None
        """Version of the Lease as last seen, and its holder."""
        self._seen_s = float("-inf")
        self._until_s = float("-inf")
        self._leads = False
        self._changed = asyncio.Event()
        self._releasing = False
        self.leader = ""
        self.leader_address = ""
        self.fault: ApiError | None = None

    def leading(self) -> bool:
        """Whether we may act at this moment: true only while nobody else can."""
        return self._leads and not self._releasing and time.monotonic() < self._until_s

    async def run(self) -> None:
        watching = asyncio.ensure_future(self._watch())
        try:
            while True:
                self._changed.clear()  # before the look: what changes while it is under way is looked at again
                await self._once()
                await self._pause()
        finally:
            watching.cancel()
            self._lose()

    async def release(self) -> None:
        """Let another lead at once. What acted must have stopped."""
        was = self._leads
        self._releasing = True
        if not was:
            return
        try:
            lease = await self._client.get(f"{self._path}/{self._name}")
            if lease["spec"].get("holderIdentity") == self.identity:
                lease["spec"]["holderIdentity"] = ""
                lease["spec"]["leaseDurationSeconds"] = 1
                await self._client.replace(f"{self._path}/{self._name}", lease, patience_s=2.0)
        except ApiError:
            return  # it runs out by itself

    # -- one look --------------------------------------------------------------------------------------

    async def _once(self) -> None:
        sent_s = time.monotonic()
        try:
            lease = await self._read()
            self._saw(lease)
            if self._releasing:
                return
            holder = (lease or {}).get("spec", {}).get("holderIdentity") or ""
            if holder in ("", self.identity) or self._run_out(lease):
                sent_s = time.monotonic()
                written = await self._write(lease, holder != self.identity)
                self._saw(written)
                self._until_s = sent_s + self.rule.give_up_s
                self._renewed(self._until_s)
                if not self._leads:
                    self._leads = True
                    self._on_lead()
            elif self._leads:
                self._lose()
            self.fault = None
        except Conflict:
            pass  # another was faster; the next look tells who
        except ApiError as error:
            self.fault = error
        if self._leads and time.monotonic() >= self._until_s:
            self._lose()

    async def _read(self) -> Object | None:
        try:
            return await self._client.request(
                "GET", f"{self._path}/{self._name}", timeout_s=self._patience_s(), patience_s=0.0, urgent=True
            )
        except NotFound:
            return None

    def _patience_s(self) -> float:
        """A leader must not learn from an answer that comes too late that it has long stopped to lead."""
        return min(self.rule.request_s, max(self._until_s - time.monotonic(), 0.05) if self._leads else math.inf)

    def _saw(self, lease: Object | None) -> None:
        if lease is None:
            self._seen = None
            return
        spec = lease.get("spec", {})
        seen = (lease["metadata"]["resourceVersion"], spec.get("holderIdentity") or "")
        if seen != self._seen:
            self._seen, self._seen_s = seen, time.monotonic()
        self.leader = seen[1]
        self.leader_address = (lease["metadata"].get("annotations") or {}).get(ADDRESS, "") if self.leader else ""

    def _run_out(self, lease: Object | None) -> bool:
        length_s = float((lease or {}).get("spec", {}).get("leaseDurationSeconds") or self.rule.lease_s)
        return time.monotonic() >= self._seen_s + length_s

    async def _write(self, lease: Object | None, new_term: bool) -> Object:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = {} if lease is None else lease.get("spec", {})
        spec = {
            **before,
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self.rule.lease_s)),
            "renewTime": now,
        }
        if new_term:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(before.get("leaseTransitions") or 0) + 1
        meta: Object = {"name": self._name, "annotations": {ADDRESS: self._address}}
        body: Object = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
        options = {"timeout_s": self._patience_s(), "patience_s": 0.0, "urgent": True}
        if lease is None:
            return await self._client.create(self._path, body, **options)
        meta["resourceVersion"] = lease["metadata"]["resourceVersion"]
        return await self._client.replace(f"{self._path}/{self._name}", body, **options)

    def _lose(self) -> None:
        if self._leads:
            self._leads = False
            self._until_s = float("-inf")
            self._on_lose()

    # -- waiting ---------------------------------------------------------------------------------------

    async def _pause(self) -> None:
        """The leader until its next renewal, others until the lease changes or would run out."""
        if self._leads or self.fault is not None:
            wait_s = min(self.rule.renew_s, max(self._until_s - time.monotonic(), 0.05)) if self._leads else 0.5
            await asyncio.sleep(wait_s)
            return
        wait_s = max(self._seen_s + self.rule.lease_s - time.monotonic(), 0.0) + 0.1
        try:
            await asyncio.wait_for(self._changed.wait(), min(wait_s, self.rule.lease_s))
        except TimeoutError:
            return

    async def _watch(self) -> None:
        """A release, or a renewal, is noticed when it happens. Without the watch it is noticed when time is up."""
        while True:
            try:
                found, version = await self._client.list_all(self._path, fieldSelector=f"metadata.name={self._name}")
                for lease in found:
                    self._saw(lease)
                    if not self._leads and not lease.get("spec", {}).get("holderIdentity"):
                        self._changed.set()  # given back before we watched
                async for _, lease in self._client.watch(
                    self._path, version, fieldSelector=f"metadata.name={self._name}"
                ):
                    if lease["metadata"].get("name") == self._name and not self._leads:
                        self._saw(lease)
                        if not lease.get("spec", {}).get("holderIdentity"):
                            self._changed.set()
            except ApiError:
                await asyncio.sleep(1.0)
