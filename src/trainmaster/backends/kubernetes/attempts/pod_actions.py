"""Makes, binds and deletes the pods that an attempt wants. One task for each attempt that wants any."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from trainmaster.backends.kubernetes.api.client import ApiError, KubeClient, Object
from trainmaster.backends.kubernetes.attempts import pod_objects as p
from trainmaster.backends.kubernetes.attempts.observations import RunKey
from trainmaster.backends.kubernetes.attempts.pod_attempt import Member, Run
from trainmaster.backends.kubernetes.attempts.pod_writer import QUOTA, PodWriter, Refused
from trainmaster.backends.kubernetes.attempts.registry import AttemptRegistry
from trainmaster.backends.kubernetes.attempts.slow_starts import SlowStarts
from trainmaster.backends.kubernetes.attempts.start_gate import StartGate
from trainmaster.backends.kubernetes.attempts.trainer_container import equip
from trainmaster.gang.actions import NOBODYS, Exited
from trainmaster.model.errors import InputError

PODS_AT_A_TIME = 256
"""Enough to keep all connections busy."""
ROOM_EVERY_S = 0.5
"""Nodes are looked at so often on which containers that are to end hold the devices."""


class PodWork:
    def __init__(self, registry: AttemptRegistry, client: KubeClient, slow: SlowStarts) -> None:
        self._registry = registry
        self._slow = slow
        self.advance: Callable[[Run], None] = lambda _: None
        """Lets the attempt go on (see `run_driver`)."""
        self.writer = PodWriter(client)
        self.gate = StartGate(PODS_AT_A_TIME)
        self._tending: set[RunKey] = set()
        self._filling: dict[RunKey, Run] = {}
        """Whose pods are being made."""

    def tend(self, run: Run) -> None:
        if run.key not in self._tending and not self._registry.halted and (_to_make(run) or _to_delete(run)):
            self._tending.add(run.key)
            self._registry.spawn(self._work(run))

    async def _work(self, run: Run) -> None:
        told = False
        try:
            while not self._registry.halted:
                if _to_delete(run):
                    await self.delete(run, _to_delete(run))
                elif _to_make(run):
                    async with self.gate.turn(len(_to_make(run))):
                        full = self._full_node(run)
                        if full is None:
                            await self._fill(run)
                    if full is not None:
                        if not told and not run.started:
                            self._slow.waits(run, f"waits for GPUs of {full} that containers of ended attempts hold")
                        told = True
                        await asyncio.sleep(ROOM_EVERY_S)
                        continue
                else:
                    return
                self.advance(run)
        finally:
            self._tending.discard(run.key)

    def _full_node(self, run: Run) -> str | None:
        """A node without room for the pods that are wanted there."""
        to_make = _to_make(run)
        wanted = {member.node: 0 for member in to_make}
        others = [(other, m) for other in self._filling.values() for m in other.members.values() if m.making]
        for owner, member in [*((run, member) for member in to_make), *others]:
            if member.pod is None and member.node in wanted:
                wanted[member.node] += owner.n_devices(member)
        return self._registry.full_node(wanted)

    # -- making ----------------------------------------------------------------------------------------

    async def _fill(self, run: Run) -> None:
        """Create the pods that are wanted, and bind them when all of them are there."""
        new = [member for member in _to_make(run) if member.pod is None]
        for member in new:
            member.making = True
        self._filling[run.key] = run
        try:
            await self._create(run, new)
            to_bind = [(member.pod_name, member.node) for member in run.staying() if not member.bound]
            if run.attempt.outcome is None and not self._registry.halted:
                await self.writer.bind(run.facts.namespace, to_bind)
                for member in run.staying():
                    member.bound = True
                self._slow.bound(run)
        except Refused as refused:
            if QUOTA in refused.why:
                run.n_granted = sum(m.pod is not None and m.gang.is_worker for m in run.staying())
            run.attempt.fail_start(refused.why, run.target[0].node if refused.node == "" else refused.node)
            for member in new:
                if member.pod is None:
                    _never_made(run, member)
        finally:
            del self._filling[run.key]
            for member in new:
                member.making = False
                if member.unwanted and member.pod is None:
                    _never_made(run, member)

    async def _create(self, run: Run, new: Sequence[Member]) -> None:
        if new and (run.facts.launcher or len(run.target) > 1):
            await self.writer.ensure_namespace(run.facts.namespace)
        bodies = [self._body(run, member) for member in new]
        made: list[Object] = []
        try:
            made = await self.writer.create(run.facts.namespace, bodies, lambda: run.attempt.outcome is None)
        except Refused as refused:
            made = refused.done
            raise
        finally:  # also of a gang that is refused half way: what was made is there, and is deleted
            for member, pod in zip(new, made, strict=False):
                if pod is not None and member.pod is None:
                    member.pod = pod
                    self._registry.note_pod(pod)

    def _body(self, run: Run, member: Member) -> Object:
        seat = run.pod_seat(member, self._registry.accelerator_of(member.node))
        body = p.pod_body(run.facts, seat, member.number)
        try:
            equip(body, seat, run.facts)
        except InputError as error:
            raise Refused(str(error)) from None
        return body

    # -- deleting --------------------------------------------------------------------------------------

    def terminate(self, run: Run, member: Member, grace_s: float) -> None:
        """The attempt wants its end; its launcher has been told. `tend` deletes the pod, if there is one."""
        member.unwanted, member.grace_s = True, grace_s
        if member.pod is None and not member.making:
            _never_made(run, member)

    def ask_again(self, run: Run) -> None:
        """Deletions that were refused are asked for again."""
        for member in run.alive:
            member.unwanted = member.unwanted or member.gang.asked is not None

    async def delete(self, run: Run, members: Sequence[Member]) -> None:
        for member in members:
            member.delete_asked = True
        grace_s = max(1, math.ceil(min(m.grace_s if m.unwanted else run.facts.grace_s for m in members)))
        try:
            await self.writer.delete(run.facts.namespace, [(m.pod_name, _uid(m)) for m in members], grace_s)
        except ApiError:  # such as a webhook's refusal: asked for again when its command is
            for member in members:
                member.unwanted = member.delete_asked = False  # or it would be asked for without a pause
            raise

    def delete_by_force(self, run: Run, member: Member) -> None:
        """What it held has certainly ended."""
        self._registry.spawn(self.writer.delete(run.facts.namespace, [(member.pod_name, _uid(member))], 0))

    def delete_stray(self, pod: Object) -> None:
        """A pod of an attempt that is over."""
        meta = pod["metadata"]
        if not meta.get("deletionTimestamp"):
            self._registry.spawn(self.writer.delete(meta["namespace"], [(meta["name"], meta["uid"])], None))


def _to_make(run: Run) -> list[Member]:
    """Members that have no pod yet, or one without a node."""
    if run.attempt.outcome is not None or not run.seq:
        return []
    return [m for m in run.staying() if not m.bound and not m.gone]


def _to_delete(run: Run) -> list[Member]:
    """Members that are to end, and pods whose other containers outlive the trainer."""
    there = [m for m in run.members.values() if not m.delete_asked and m.pod is not None and not m.gone]
    return [m for m in there if (m.unwanted if m.alive else m.outlived)]


def _never_made(run: Run, member: Member) -> None:
    run.ended(member, Exited(1, f"{member.pod_name}: never made", NOBODYS, ran=False))


def _uid(member: Member) -> str | None:
    return None if member.pod is None else member.pod["metadata"].get("uid")
