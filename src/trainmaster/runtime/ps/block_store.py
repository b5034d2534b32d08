"""The blocks one server holds, and when it may answer for them: the rules of the parameter server, without I/O.

A push is applied at most once (`BlockState.seen`) and acknowledged only when
1. the block's backup lacks at most `replica_lag` of the updates that would then be acknowledged, and
2. with a staleness bound s, the worker is at most s steps ahead of the slowest one.
So when a home dies, its backup knows of every update that was ever acknowledged but for the last
`replica_lag`: acknowledged <= confirmed + lag is checked at each acknowledgement, and confirmed never falls.

Every method gives the answers that have become due; a block that goes elsewhere answers `MOVED` to those who
still wait, and they send again, under the same sequence number, to its new home.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from trainmaster.runtime.ps.block import BlockState, new_block
from trainmaster.runtime.ps.optimizer import Floats, accumulate
from trainmaster.runtime.ps.shard_map import NOBODY, ShardMap
from trainmaster.runtime.ps.terms import Terms

SEEN_WORKERS_MAX = 256
"""Beyond that many, a block forgets the counts of workers that have left."""


class Status(IntEnum):
    OK = 0
    MOVED = 1
    """Ask for the new map."""
    LATER = 2
    """The block is on its way here: wait for `READY`."""
    VOID = 3
    """Nobody knows its values: the senior worker gives them."""
    READY = 4


class Role(IntEnum):
    FORMER = 0
    """Handed over; kept until the new map is complete, in case the new home dies before that."""
    BACKUP = 1
    HOME = 2


@dataclass(frozen=True)
class Answer:
    to: int
    block: int
    status: Status
    number: int
    state: BlockState | None = None


@dataclass
class _Waiter:
    to: int
    number: int
    clock: int
    version: int | None
    """What must be replicated first; None while its round is open."""


@dataclass
class _Round:
    """Gradients of one synchronous update, until everybody it waits for has given one."""

    total: Floats
    clock: int
    """The least among those who gave."""
    given: dict[str, int] = field(default_factory=dict)
    rate_factor: float = 0.0


@dataclass(frozen=True)
class _Enrolled:
    """A worker that pushes, from its first push until its connection ends."""

    connection: int
    clock: int
    seq: int

    def clock_at(self, seq: int) -> int:
        """Both count pushes, from different beginnings."""
        return seq + self.clock - self.seq


@dataclass
class _Held:
    state: BlockState
    role: Role
    backup: str = NOBODY
    confirmed: int = -1
    """The newest version that the present backup is known to have."""
    since_epoch: int = 0
    """Of the map that named the present backup."""
    copying: bool = False
    waiters: list[_Waiter] = field(default_factory=list)
    round: _Round | None = None


class BlockStore:
    def __init__(self, server: str) -> None:
        self.server = server
        self.terms: Terms | None = None
        self.map = ShardMap(0, {})
        self.frozen = False
        """Between an inventory and the map that follows no void block may get values."""
        self._held: dict[int, _Held] = {}
        self._void: set[int] = set()
        self._awaiting: dict[int, list[tuple[int, int]]] = {}
        self._enrolled: dict[str, _Enrolled] = {}
        self._listed: frozenset[str] | None = None
        self._waited_on: set[int] = set()

    # -- workers ----------------------------------------------------------------------------------

    def push(
        self, to: int, worker: str, block: int, seq: int, clock: int, epoch: int, rate_factor: float, gradient: Floats
    ) -> list[Answer]:
        held = self._held.get(block)
        if held is None or held.role != Role.HOME:
            return [Answer(to, block, self._elsewhere(block, epoch), seq)]
        assert self.terms is not None
        answers: list[Answer] = []
        if self._listed is None or member_of(worker) in self._listed:
            before = self._enrolled.get(worker)
            self._enrolled[worker] = _Enrolled(to, clock, seq)
            if self.terms.staleness is not None and (before is None or before.clock != clock):
                answers += self._recheck()
        state = held.state
        if seq <= state.seen.get(worker, -1):
            held.waiters.append(_Waiter(to, seq, clock, state.version))
        elif self.terms.sync:
            self._contribute(held, worker, seq, clock, rate_factor, gradient)
            held.waiters = [waiter for waiter in held.waiters if (waiter.to, waiter.number) != (to, seq)]
            held.waiters.append(_Waiter(to, seq, clock, None))
            self._close_round(held)
        else:
            state.apply(self.terms.optimizer, gradient, rate_factor, {worker: seq})
            held.waiters.append(_Waiter(to, seq, clock, state.version))
        self._waited_on.add(block)
        return answers + self._release(block, held)

    def pull(self, to: int, block: int, epoch: int, number: int) -> list[Answer]:
        held = self._held.get(block)
        if held is None or held.role != Role.HOME:
            return [Answer(to, block, self._elsewhere(block, epoch), number)]
        return [Answer(to, block, Status.OK, number, held.state)]

    def await_block(self, to: int, block: int, epoch: int, number: int, values: bool) -> list[Answer]:
        """Answered when the block is here, or is known to be elsewhere. `values`: nor while it is void."""
        held = self._held.get(block)
        if held is not None and held.role == Role.HOME:
            return [Answer(to, block, Status.READY, number)]
        status = self._elsewhere(block, epoch)
        if status == Status.MOVED or (status == Status.VOID and not values):
            return [Answer(to, block, Status.MOVED if status == Status.MOVED else Status.READY, number)]
        self._awaiting.setdefault(block, []).append((to, number))
        return []

    def give_values(self, block: int, values: Floats) -> list[Answer]:
        """First values of a void block; ignored if it has some by now."""
        if block not in self._void or self.frozen or self.terms is None:
            return []
        self._void.discard(block)
        return self._activate(block, _Held(new_block(values, self.terms.optimizer.slots), Role.HOME))

    def leave(self, to: int) -> list[Answer]:
        """A connection has ended."""
        for worker in [name for name, enrolled in self._enrolled.items() if enrolled.connection == to]:
            del self._enrolled[worker]
        for block in self._awaiting:
            self._awaiting[block] = [entry for entry in self._awaiting[block] if entry[0] != to]
        for block in sorted(self._waited_on):
            held = self._held[block]
            held.waiters = [waiter for waiter in held.waiters if waiter.to != to]
        return self._recheck()

    def list_workers(self, members: frozenset[str]) -> list[Answer]:
        """Nobody waits any longer for workers that have been dismissed."""
        self._listed = members
        for worker in [name for name in self._enrolled if member_of(name) not in members]:
            del self._enrolled[worker]
        return self._recheck()

    @property
    def slowest_clock(self) -> int:
        return min((enrolled.clock for enrolled in self._enrolled.values()), default=0)

    # -- other servers ----------------------------------------------------------------------------

    def inventory(self) -> list[tuple[int, int, int]]:
        """(block, role, version) of all that is here."""
        return [(block, int(held.role), held.state.version) for block, held in sorted(self._held.items())]

    def adopt(self, new: ShardMap) -> list[Answer]:
        """Homes stay homes until they are fetched; what is to come here is `missing`."""
        self.map, self.frozen = new, False
        answers: list[Answer] = []
        for block, held in sorted(self._held.items()):
            if held.role == Role.HOME and held.backup != new.backup[block]:
                held.backup, held.confirmed, held.since_epoch, held.copying = new.backup[block], -1, new.epoch, False
                answers += self._release(block, held)
        for block in sorted(self._awaiting):
            if new.home[block] != self.server:
                answers += [Answer(to, block, Status.MOVED, number) for to, number in self._awaiting.pop(block)]
        self._void = {block for block in self._void if new.home[block] == self.server}
        for block in sorted(self._void):  # whoever waits looks again: another worker may be the senior by now
            answers += [Answer(to, block, Status.READY, number) for to, number in self._awaiting.pop(block, [])]
        return answers

    def missing(self) -> list[int]:
        """Blocks whose home this is by the map and that cannot be used here yet."""
        return [
            block
            for block in self.map.blocks_of(self.server)
            if block not in self._void and (block not in self._held or self._held[block].role != Role.HOME)
        ]

    def promote(self, block: int) -> list[Answer]:
        """What is held here as a backup becomes the block itself."""
        return self._activate(block, _Held(self._held[block].state, Role.HOME))

    def install(self, block: int, state: BlockState) -> list[Answer]:
        return self._activate(block, _Held(state, Role.HOME))

    def declare_void(self, block: int) -> list[Answer]:
        """No copy and no checkpoint exists: whoever waits is told, so that the senior worker gives values."""
        self._void.add(block)
        return [Answer(to, block, Status.READY, number) for to, number in self._awaiting.pop(block, [])]

    def hand_over(self, block: int) -> tuple[BlockState | None, list[Answer]]:
        """The block's state for its new home; from now on it is not served here."""
        held = self._held.get(block)
        if held is None:
            return None, []
        answers = [Answer(waiter.to, block, Status.MOVED, waiter.number) for waiter in held.waiters]
        self._held[block] = _Held(held.state, Role.FORMER)
        self._waited_on.discard(block)
        return held.state, answers

    def peek(self, block: int) -> BlockState | None:
        """A copy, for a checkpoint; only of what this server is the home of."""
        held = self._held.get(block)
        return held.state.copy() if held is not None and held.role == Role.HOME else None

    def take_copy(self, block: int, state: BlockState) -> bool:
        """Another server's block, kept as its backup; refused when this server is its home by now."""
        held = self._held.get(block)
        if held is not None and (held.role == Role.HOME or held.state.version > state.version):
            return False
        self._held[block] = _Held(state, Role.BACKUP)
        return True

    def copy_is_due(self, block: int, flush: bool = False) -> bool:
        """Whether the backup should now be brought up to date (as soon as it differs, with `flush`)."""
        held = self._held.get(block)
        if held is None or held.role != Role.HOME or not held.backup or held.copying or self.terms is None:
            return False
        if self.terms.replica_lag is None:
            return False
        # Half the lag: copies are as rare as the bound allows, and under way before anybody has to wait.
        trigger = 1 if flush else max(1, (self.terms.replica_lag + 1) // 2)
        return held.confirmed < 0 or held.state.version - held.confirmed >= trigger

    def mark_copying(self, block: int) -> None:
        self._held[block].copying = True

    def begin_copy(self, block: int) -> tuple[str, int, BlockState] | None:
        """(to whom, under which map it was named, what), as it is at this moment; ends with `end_copy`."""
        held = self._held.get(block)
        if held is None or held.role != Role.HOME or not held.backup:
            return None
        return held.backup, held.since_epoch, held.state.copy()

    def end_copy(self, block: int, since_epoch: int, version: int | None) -> list[Answer]:
        """`version`: what the backup has confirmed; None: it did not take it."""
        held = self._held.get(block)
        if held is None or held.role != Role.HOME or held.since_epoch != since_epoch:
            return []  # another backup has been named meanwhile
        held.copying = False
        if version is None:
            return []
        held.confirmed = max(held.confirmed, version)
        return self._release(block, held)

    @property
    def redundant(self) -> bool:
        """Whether every block that should be here is, and has a backup, or can have none."""
        without = self.terms is None or self.terms.replica_lag is None
        return not self.missing() and all(
            held.role != Role.HOME or not held.backup or without or held.confirmed >= 0 for held in self._held.values()
        )

    @property
    def homes(self) -> list[int]:
        return [block for block, held in sorted(self._held.items()) if held.role == Role.HOME]

    def complete(self) -> None:
        """The map holds everywhere: forget copies that it does not ask for."""
        for block in list(self._held):
            if self.server not in (self.map.home[block], self.map.backup[block]):
                del self._held[block]
                self._waited_on.discard(block)
        for held in self._held.values():
            # Not at once: a worker that leaves may still send its last gradient again.
            if self._listed is not None and len(held.state.seen) > SEEN_WORKERS_MAX:
                for worker in [name for name in held.state.seen if member_of(name) not in self._listed]:
                    del held.state.seen[worker]

    # -- the rules --------------------------------------------------------------------------------

    def _elsewhere(self, block: int, epoch: int) -> Status:
        if block in self._void:
            return Status.LATER if self.frozen else Status.VOID
        coming = epoch > self.map.epoch or (block < len(self.map.home) and self.map.home[block] == self.server)
        return Status.LATER if coming else Status.MOVED

    def _activate(self, block: int, held: _Held) -> list[Answer]:
        held.backup, held.since_epoch = self.map.backup[block], self.map.epoch
        self._void.discard(block)
        self._held[block] = held
        return [Answer(to, block, Status.READY, number) for to, number in self._awaiting.pop(block, [])]

    def _contribute(self, held: _Held, worker: str, seq: int, clock: int, rate_factor: float, gradient: Floats) -> None:
        if held.round is None:
            held.round = _Round(np.zeros_like(held.state.params), clock)
        if worker in held.round.given:
            return  # sent again after its connection broke
        held.round.clock = min(held.round.clock, clock)
        accumulate(held.round.total, gradient)
        held.round.given[worker] = seq
        held.round.rate_factor = max(held.round.rate_factor, rate_factor)

    def _is_awaited(self, held: _Held, worker: str) -> bool:
        """Not when its gradient of this round's clock has been applied before: it will not come again, and the worker
        may be waiting elsewhere for one of those who gave here."""
        current = held.round
        if current is None or worker in current.given:
            return False
        applied = held.state.seen.get(worker)
        return applied is None or self._enrolled[worker].clock_at(applied) < current.clock

    def _close_round(self, held: _Held) -> None:
        current = held.round
        if current is None or not self._enrolled or any(self._is_awaited(held, name) for name in self._enrolled):
            return
        assert self.terms is not None
        current.total *= np.float32(1.0 / len(current.given))
        held.state.apply(self.terms.optimizer, current.total, current.rate_factor, current.given)
        held.round = None
        for waiter in held.waiters:
            if waiter.version is None:
                waiter.version = held.state.version

    def _recheck(self) -> list[Answer]:
        answers: list[Answer] = []
        for block in sorted(self._waited_on):
            held = self._held[block]
            self._close_round(held)
            answers += self._release(block, held)
        return answers

    def _release(self, block: int, held: _Held) -> list[Answer]:
        if not held.waiters:
            self._waited_on.discard(block)
            return []
        assert self.terms is not None
        lag, staleness = self.terms.replica_lag, self.terms.staleness
        replicated_to = None if lag is None or not held.backup else held.confirmed + lag
        open_to = None if staleness is None else self.slowest_clock + staleness
        answers: list[Answer] = []
        kept: list[_Waiter] = []
        for waiter in held.waiters:
            if (
                waiter.version is None
                or (replicated_to is not None and waiter.version > replicated_to)
                or (open_to is not None and waiter.clock > open_to)
            ):
                kept.append(waiter)
            else:
                answers.append(Answer(waiter.to, block, Status.OK, waiter.number, held.state))
        held.waiters = kept
        if not kept:
            self._waited_on.discard(block)
        return answers


def member_of(worker: str) -> str:
    """Workers are known as `member.nonce`: a name may return in a later attempt, a process does not."""
    return worker.rpartition(".")[0] or worker
