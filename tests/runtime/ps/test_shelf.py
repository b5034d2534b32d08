"""The rules of the servers without sockets: a world of shelves, random pushes, copies, moves and deaths.

The world keeps its own books (which gradients were sent and acknowledged) and compares the blocks with them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from trainmaster.runtime.ps.block import BadBlock, BlockState, unpack
from trainmaster.runtime.ps.block_store import Answer, BlockStore, Status
from trainmaster.runtime.ps.layout import make_layout
from trainmaster.runtime.ps.optimizer import Adam, Sgd
from trainmaster.runtime.ps.shard_map import NOBODY
from trainmaster.runtime.ps.terms import Terms
from trainmaster.runtime.ps.transition import plan

BLOCKS = 6
ONE = np.full(16, -1.0, np.float32)


def terms(**options: object) -> Terms:
    return Terms(make_layout([("w", (16 * BLOCKS,))], 64), Sgd(1.0), **options)  # type: ignore[arg-type]


@dataclass
class World:
    """Workers push 1 to one block after the other; connection number = worker number."""

    lag: int | None
    rng: random.Random
    shelves: dict[str, BlockStore] = field(default_factory=dict)
    epoch: int = 0
    servers_made: int = 0
    seq: dict[tuple[int, int], int] = field(default_factory=dict)
    """Last sequence number of (worker, block)."""
    open: set[tuple[int, int]] = field(default_factory=set)
    acked: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(BLOCKS), 0))
    listed: set[str] = field(default_factory=set)
    deaths: int = 0
    whole: bool = True
    """No death since every block last had its backup."""
    copies: list[tuple[str, int, str, int, BlockState]] = field(default_factory=list)

    def add(self) -> None:
        name = f"s{self.servers_made}"
        self.servers_made += 1
        self.shelves[name] = BlockStore(name)
        self.listed.add(name)
        self.change()

    def change(self, leaving: str = NOBODY) -> None:
        """Prepare and map; `settle` completes it, if nothing comes in between."""
        self.epoch += 1
        self.listed.discard(leaving)
        listed = {name: name for name in sorted(self.listed)}
        for block_store in self.shelves.values():
            block_store.frozen = True
        inventories = {name: block_store.inventory() for name, block_store in self.shelves.items()}
        new, source = plan(self.epoch, listed, terms(replica_lag=self.lag), inventories)
        for block_store in self.shelves.values():
            block_store.terms = terms(replica_lag=self.lag)
            self.take(block_store.adopt(new))
            for block in block_store.missing():
                if source[block] == NOBODY:
                    self.take(block_store.declare_void(block))
                    self.take(block_store.give_values(block, np.zeros(16, np.float32)))
                elif source[block] == block_store.server:
                    self.take(block_store.promote(block))
                else:
                    state, answers = self.shelves[source[block]].hand_over(block)
                    self.take(answers)
                    assert state is not None
                    self.take(block_store.install(block, state))
        for block in range(BLOCKS):
            assert [n for n in self.shelves if block in self.shelves[n].homes] == [new.home[block]]

    def settle(self) -> None:
        if all(self.shelves[name].redundant for name in self.listed):
            self.whole = True
            for name in sorted(self.shelves):
                if name in self.listed:
                    self.shelves[name].complete()
                else:
                    del self.shelves[name]

    def kill(self, name: str) -> None:
        del self.shelves[name]
        self.listed.discard(name)
        self.deaths += 1
        self.whole = False
        self.change()

    def home(self, block: int) -> BlockStore:
        return next(block_store for block_store in self.shelves.values() if block in block_store.homes)

    def value(self, block: int) -> int:
        state = self.home(block).peek(block)
        assert state is not None
        assert state.params.min() == state.params.max() == state.version
        return state.version

    def push(self, worker: int, block: int) -> None:
        key = (worker, block)
        if key not in self.open:
            self.seq[key] = self.seq.get(key, 0) + 1
            self.open.add(key)
        self.take(self.home(block).push(worker, f"w{worker}.x", block, self.seq[key], 1, self.epoch, 1.0, ONE))

    def take(self, answers: list[Answer]) -> None:
        for answer in answers:
            key = (answer.to, answer.block)
            if answer.status == Status.OK and key in self.open and answer.number == self.seq[key]:
                self.open.discard(key)
                self.acked[answer.block] += 1

    def copy(self, name: str, block: int) -> None:
        block_store = self.shelves[name]
        if block_store.copy_is_due(block, flush=True):
            block_store.mark_copying(block)
            begun = block_store.begin_copy(block)
            assert begun is not None
            self.copies.append((name, block, *begun))

    def deliver_copy(self) -> None:
        name, block, backup, since, state = self.copies.pop(self.rng.randrange(len(self.copies)))
        if name not in self.shelves:
            return  # what a dead server has sent is refused: it does not take part any more
        taken = backup in self.shelves and self.shelves[backup].take_copy(block, state)
        self.take(self.shelves[name].end_copy(block, since, state.version if taken else None))

    def act(self) -> None:
        kind = self.rng.choice("pppppppppccccddddddsxk")
        name = self.rng.choice(sorted(self.shelves))
        if kind == "p":
            self.push(self.rng.randrange(3), self.rng.randrange(BLOCKS))
        elif kind == "c":
            for block in self.shelves[name].homes:
                self.copy(name, block)
        elif kind == "d":
            for _ in range(min(3, len(self.copies))):
                self.deliver_copy()
        elif kind == "s" and len(self.shelves) < 5:
            self.add()
        elif kind == "x" and len(self.listed) > 2 and name in self.listed:
            self.change(leaving=name)
        elif kind == "k" and len(self.listed) > 2 and self.whole:
            self.kill(name)  # a second death before redundancy is restored is the checkpoint's business
        self.settle()
        for block in range(BLOCKS):
            sent = sum(seq for (_, b), seq in self.seq.items() if b == block)
            assert self.value(block) <= sent, "applied twice"
            assert self.value(block) >= self.acked[block] - (self.lag or 0) * self.deaths, "more lost than allowed"


@pytest.mark.parametrize("lag", [0, 3])
@pytest.mark.parametrize("seed", range(12))
def test_no_gradient_is_applied_twice_and_only_the_lag_is_ever_lost(seed: int, lag: int) -> None:
    world = World(lag, random.Random(seed))
    world.add()
    world.add()
    for _ in range(400):
        world.act()
    assert world.deaths >= 2
    for _ in range(10):  # faults off: everybody sends again what was not acknowledged
        for worker, block in sorted(world.open):
            world.push(worker, block)
        for name in sorted(world.shelves):
            for block in world.shelves[name].homes:
                world.copy(name, block)
        while world.copies:
            world.deliver_copy()
    for block in range(BLOCKS):
        sent = sum(seq for (_, b), seq in world.seq.items() if b == block)
        assert world.acked[block] == sent
        assert sent - lag * world.deaths <= world.value(block) <= sent


def test_a_push_is_acknowledged_only_when_its_backup_is_near_enough() -> None:
    world = World(0, random.Random(0))
    world.add()
    world.add()
    while world.copies:
        world.deliver_copy()
    world.push(0, 2)
    assert (0, 2) in world.open
    name = world.home(2).server
    world.copy(name, 2)
    world.deliver_copy()
    assert world.acked[2] == 1 and not world.open


def test_the_stale_bound_holds_the_fast_worker_back() -> None:
    block_store = _alone(staleness=1)
    assert _statuses(block_store.push(1, "a.x", 0, 1, 1, 1, 1.0, ONE)) == [Status.OK]
    assert _statuses(block_store.push(2, "b.x", 0, 1, 1, 1, 1.0, ONE)) == [Status.OK]
    assert _statuses(block_store.push(1, "a.x", 0, 2, 2, 1, 1.0, ONE)) == [Status.OK]
    assert block_store.push(1, "a.x", 0, 3, 3, 1, 1.0, ONE) == []
    freed = block_store.push(2, "b.x", 0, 2, 2, 1, 1.0, ONE)
    assert sorted(answer.to for answer in freed) == [1, 2]
    assert block_store.push(1, "a.x", 0, 4, 4, 1, 1.0, ONE) == []
    assert [answer.to for answer in block_store.leave(2)] == [1]  # nobody waits for who is gone


def test_synchronous_updates_are_means_of_one_gradient_each() -> None:
    block_store = _alone(sync=True)
    block_store.push(1, "a.x", 0, 1, 1, 1, 1.0, ONE)  # alone so far: applied at once
    assert [answer.to for answer in block_store.push(2, "b.x", 0, 1, 1, 1, 1.0, ONE)] == [
        2
    ]  # a's first is there already
    assert block_store.push(1, "a.x", 0, 2, 2, 1, 1.0, ONE) == []
    assert block_store.push(1, "a.x", 0, 2, 2, 1, 1.0, ONE) == []  # sent again: counted once
    answers = block_store.push(2, "b.x", 0, 2, 2, 1, 1.0, 3 * ONE)
    assert sorted(answer.to for answer in answers) == [1, 2]
    state = block_store.peek(0)
    assert state is not None and state.work == 4 and state.version == 3
    np.testing.assert_allclose(state.params, 1.0 + 1.0 + 2.0)


def test_workers_whose_first_pushes_cross_do_not_wait_for_each_other_on_two_servers() -> None:
    """Each is first at another server. Were the second made to wait for a next push, neither would ever make it."""
    first, second = _alone(sync=True), _alone(sync=True)
    answered = [
        first.push(1, "a.x", 0, 1, 1, 1, 1.0, ONE),
        second.push(2, "b.x", 0, 1, 1, 1, 1.0, ONE),
        first.push(2, "b.x", 0, 1, 1, 1, 1.0, ONE),
        second.push(1, "a.x", 0, 1, 1, 1, 1.0, ONE),
    ]
    assert [[answer.to for answer in answers] for answers in answered] == [[1], [2], [2], [1]]
    assert first.push(1, "a.x", 0, 2, 2, 1, 1.0, ONE) == [], "from here on they go in step"
    assert len(first.push(2, "b.x", 0, 2, 2, 1, 1.0, ONE)) == 2


def test_a_worker_that_counts_from_elsewhere_falls_into_step() -> None:
    block_store = _alone(sync=True)
    block_store.push(1, "a.x", 0, 7, 7, 1, 1.0, ONE)
    assert block_store.push(1, "a.x", 0, 8, 8, 1, 1.0, ONE), "alone"
    assert [answer.to for answer in block_store.push(2, "b.x", 0, 1, 8, 1, 1.0, ONE)] == [2]
    for step in range(9, 12):
        assert block_store.push(1, "a.x", 0, step, step, 1, 1.0, ONE) == []
        assert len(block_store.push(2, "b.x", 0, step - 7, step, 1, 1.0, ONE)) == 2


def test_a_synchronous_round_does_not_wait_for_the_dead_or_dismissed() -> None:
    block_store = _alone(sync=True)
    block_store.push(1, "a.x", 0, 1, 1, 1, 1.0, ONE)
    block_store.push(2, "b.x", 0, 1, 1, 1, 1.0, ONE)
    assert block_store.push(2, "b.x", 0, 2, 2, 1, 1.0, ONE) == []
    assert [answer.to for answer in block_store.leave(1)] == [2]
    assert block_store.push(3, "c.x", 0, 1, 3, 1, 1.0, ONE) == []
    assert [answer.to for answer in block_store.list_workers(frozenset({"c"}))] == [3]


def test_a_block_survives_its_own_bytes() -> None:
    state = BlockState(np.arange(8, dtype=np.float32), np.ones((2, 8), np.float32), 5, 9, {"a.x": 4})
    data = bytearray(b"".join(state.pack()))
    again = unpack(data, 8, Adam().slots)
    np.testing.assert_array_equal(again.params, state.params)
    np.testing.assert_array_equal(again.slots, state.slots)
    assert (again.version, again.work, again.seen) == (5, 9, {"a.x": 4})
    with pytest.raises(BadBlock):
        unpack(data[:-1], 8, 2)


def _alone(**options: object) -> BlockStore:
    block_store = BlockStore("s0")
    block_store.terms = terms(**options)
    new, _ = plan(1, {"s0": "s0"}, block_store.terms, {"s0": []})
    block_store.adopt(new)
    for block in range(BLOCKS):
        block_store.declare_void(block)
        block_store.give_values(block, np.zeros(16, np.float32))
    return block_store


def _statuses(answers: list[Answer]) -> list[Status]:
    return [answer.status for answer in answers]
