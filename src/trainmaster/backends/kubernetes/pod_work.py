"""Does what a run needs: pods made and bound, or deleted. One task for each run that needs anything."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from trainmaster.backends.kubernetes import pods as p
from trainmaster.backends.kubernetes.client import ApiError, KubeClient, Object
from trainmaster.backends.kubernetes.facts import RunKey
from trainmaster.backends.kubernetes.launching import equip
from trainmaster.backends.kubernetes.pod_writer import PodWriter, Refused
from trainmaster.backends.kubernetes.run import START_FAILED, STOPPED, Ending, Member, Run, Slot
from trainmaster.backends.kubernetes.run_book import RunBook
from trainmaster.backends.kubernetes.slow_starts import SlowStarts
from trainmaster.backends.kubernetes.start_gate import StartGate
from trainmaster.model.errors import InputError

PODS_AT_A_TIME = 256
"""Enough to keep all connections busy."""
KIND_PATIENCE = 6
"""So many times as long as the report of its start waits, a gang may take to say that it goes along with resizes."""


class PodWork:
    def __init__(self, book: RunBook, client: KubeClient, slow: SlowStarts, judge: Callable[[Run], None]) -> None:
        self._book = book
        self._slow = slow
        self._judge = judge
        self.writer = PodWriter(client)
        self.gate = StartGate(PODS_AT_A_TIME)
        self._tending: set[RunKey] = set()

    def tend(self, run: Run) -> None:
        if run.key not in self._tending and not self._book.halted and self._is_needed(run):
            self._tending.add(run.key)
            self._book.spawn(self._work(run))

    def _is_needed(self, run: Run) -> bool:
        if run.ending is not None or run.restarting:
            return bool(_undeleted(run))
        if run.started and run.facts.spec.elastic and not self._kind_known(run):
            return False
        return run.seq > 0 and (bool(run.unfilled()) or bool(run.surplus()) or bool(_unbound(run)))

    def _kind_known(self, run: Run) -> bool:
        """Whether it is clear if the runtime goes along with changes of size; it has some time to say so."""
        if not run.facts.launcher or run.speaks is not None:
            return True
        return run.begun and time.monotonic() >= run.begun_s + KIND_PATIENCE * self._book.options.hello_wait_s

    async def _work(self, run: Run) -> None:
        try:
            while self._is_needed(run) and not self._book.halted:
                await self._act(run)
                # What was done is judged in another task's turn, so that the loop ends when there is nothing left.
                self._judge(run)
        finally:
            self._tending.discard(run.key)

    async def _act(self, run: Run) -> None:
        if run.ending is not None or run.restarting:
            await self.delete(run, _undeleted(run))
            return
        surplus = run.surplus()
        if surplus and not run.speaks and run.started:
            await self._restart(run)
            return
        if surplus:
            for member in surplus:
                member.leaving = True
            self._dismiss(run, surplus)
            return
        if run.started and not run.speaks and run.unfilled() and any(m.alive for m in run.members.values()):
            await self._restart(run)
            return
        async with self.gate.passage(len(run.unfilled()) or len(_unbound(run))):
            if run.ending is None and not run.restarting and not self._book.halted:
                await self._fill(run, run.unfilled())

    def _dismiss(self, run: Run, members: Sequence[Member]) -> None:
        """Members that leave a speaking gang go by themselves, others are deleted."""
        if run.facts.launcher and run.speaks:
            self._book.launchers.dismiss(run.key, [m.name for m in members], "resize")
        else:
            self._book.spawn(self.delete(run, [m for m in members if m.pod is not None]))

    async def _restart(self, run: Run) -> None:
        """A gang that does not speak is resized by ending all and starting all."""
        run.restarting = True
        self._book.launchers.stop(run.key, "resize", run.facts.grace_s)
        self._book.launchers.dismiss(run.key, [m.name for m in run.staying()], "resize")
        for member in run.alive:
            member.leaving = True
        await self.delete(run, [m for m in run.alive if m.pod is not None and not m.gone])

    # -- making ----------------------------------------------------------------------------------------

    async def _fill(self, run: Run, slots: Sequence[Slot]) -> None:
        """Create pods for these places, and bind them when all of them are there."""
        run.creating = True
        try:
            await self._create(run, run.enlist(slots))
            to_bind = [(m.pod_name, m.slot.node) for m in run.staying() if not m.bound]
            if run.ending is None and not self._book.halted:
                await self.writer.bind(run.facts.namespace, to_bind)
                for member in run.staying():
                    member.bound = True
                self._slow.bound(run)
        except Refused as refused:
            if run.ending is None:
                if run.started:
                    run.ending = Ending(STOPPED, why=refused.why)
                else:
                    node = run.target[0].node if refused.node == "" else refused.node
                    run.ending = Ending(START_FAILED, 1, refused.why, node)
        finally:
            run.creating = False
            for member in run.members.values():
                # What was never made has ended; what was made in vain is deleted.
                if run.ending is not None and member.pod is None and member.end is None:
                    run.saw(member, _never(member), True, True)

    async def _create(self, run: Run, new: Sequence[Member]) -> None:
        if new and (run.facts.launcher or len(run.target) > 1):
            await self.writer.ensure_namespace(run.facts.namespace)
        if run.facts.launcher:
            for member in new:
                self._book.launchers.admit(run.key, run.seat(member))
        bodies = [_body(run, member) for member in new]
        made: list[Object] = []
        try:
            made = await self.writer.create(run.facts.namespace, bodies, lambda: run.ending is None)
        except Refused as refused:
            made = refused.done
            raise
        finally:  # also of a gang that is refused half way: what was made is there, and is deleted
            for member, pod in zip(new, made, strict=False):
                if pod is not None and member.pod is None:
                    member.pod = pod

    # -- deleting --------------------------------------------------------------------------------------

    async def delete(self, run: Run, members: Sequence[Member]) -> None:
        for member in members:
            member.delete_asked = True
        grace_s = math.ceil(run.facts.grace_s)
        try:
            await self.writer.delete(run.facts.namespace, [(m.pod_name, _uid(m)) for m in members], grace_s)
        except ApiError:  # such as a webhook's refusal: asked for again when its command is
            for member in members:
                member.delete_asked = False
            raise

    def delete_by_force(self, run: Run, member: Member) -> None:
        """What it held has certainly ended."""
        self._book.spawn(self.writer.delete(run.facts.namespace, [(member.pod_name, _uid(member))], 0))

    def delete_stray(self, pod: Object) -> None:
        """A pod of an incarnation that is over."""
        meta = pod["metadata"]
        if not meta.get("deletionTimestamp"):
            self._book.spawn(self.writer.delete(meta["namespace"], [(meta["name"], meta["uid"])], None))


def _unbound(run: Run) -> list[Member]:
    return [m for m in run.staying() if m.pod is not None and not m.gone and not m.bound]


def _undeleted(run: Run) -> list[Member]:
    return [m for m in run.alive if not m.delete_asked and m.pod is not None and not m.gone]


def _body(run: Run, member: Member) -> Object:
    seat = run.seat(member)
    body = p.pod_body(run.facts, seat, member.number)
    try:
        equip(body, seat, run.facts)
    except InputError as error:
        raise Refused(str(error)) from None
    return body


def _uid(member: Member) -> str | None:
    return None if member.pod is None else member.pod["metadata"].get("uid")


def _never(member: Member) -> Object:
    return {"metadata": {"name": member.pod_name}, "spec": {"containers": [{"name": ""}]}}
