"""From one set of servers to the next: who leads, what moves, and when everybody may rely on it.

The senior server of a membership leads. It asks every server that may hold anything what it has (*prepare*),
makes the map, sends it to all (*map*), and when every block is at its home and has its backup, ends the change
(*complete*). Each attempt has a greater epoch, and whoever has seen an epoch ignores lesser ones.

Why nothing is lost: a home serves its block until the new home fetches it, and at that moment stops; the new
home serves it only after it has arrived, and only if no later epoch has been prepared in between. The copy left
behind is kept until *complete*. A server that is not among the participants of the prepared epoch has its copies
refused, so a home that was given up for dead can acknowledge no more than the lag allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from trainmaster.gang.protocol import Membership
from trainmaster.model.errors import InputError
from trainmaster.runtime.ps.block import unpack
from trainmaster.runtime.ps.block_store import Role
from trainmaster.runtime.ps.shard_map import NOBODY, ShardMap, assign_backups, assign_homes
from trainmaster.runtime.ps.terms import Terms

if TYPE_CHECKING:
    from trainmaster.runtime.ps.server import ShardServer

log = logging.getLogger("trainmaster.ps")

ANNOUNCE_S = 1.0
"""How long a leader that knows nobody waits for leaving servers to make themselves known."""
LEAVE_S = 60.0
"""A leaving server that nobody relieves goes after so long."""
RETRY_S = 0.05
_FETCHES_AT_ONCE = 4
_ATTEMPT_BITS = 32


class Transitions:
    def __init__(self, server: ShardServer) -> None:
        self._server = server
        self.prepared = 0
        self._participants: frozenset[str] = frozenset()
        self._membership: Membership | None = None
        self._known: dict[str, str] = {}
        """Servers that may hold blocks: name -> address."""
        self._attempt = 0
        self._conducting: asyncio.Task[Any] | None = None
        self._announced = asyncio.Event()

    # -- what the agent and the workers say -------------------------------------------------------

    def follow(self, membership: Membership) -> None:
        self._membership = membership
        leader = membership.servers[0].member if membership.servers else NOBODY
        if leader == self._server.name:
            self._conduct()
            return
        if self._conducting is not None:
            self._conducting.cancel()
        self._known |= {peer.member: peer.address for peer in membership.servers}
        if membership.find(self._server.name) is None:
            self._server.spawn(self._leave(membership))

    def register(self, question: dict[str, Any]) -> dict[str, Any]:
        """A worker brings its terms; the leader answers with the clock the worker starts from."""
        membership, block_store = self._membership, self._server.block_store
        if membership is None or not membership.servers or membership.servers[0].member != self._server.name:
            raise ConnectionError("not the leader")
        terms = Terms.from_json(question["terms"])
        if block_store.terms is None:
            self._server.saver.load(terms)  # complains before anything is changed
            self._server.set_terms(terms)
            self._conduct()
        elif block_store.terms != terms:
            raise InputError(
                f"this worker brings {_difference(terms, block_store.terms)}",
                "the same model, optimizer and options in every worker of a job",
                "Give all workers the same script and arguments.",
            )
        return {"clock": block_store.slowest_clock}

    # -- followers (the leader too is one) --------------------------------------------------------

    def takes_part(self, server: str) -> bool:
        return server in self._participants

    def prepare(self, question: dict[str, Any]) -> dict[str, Any]:
        epoch = int(question["epoch"])
        if epoch < self.prepared:
            raise ConnectionError(f"epoch {epoch} is over; {self.prepared} has been prepared")
        self.prepared = epoch
        self._participants = frozenset(question["participants"])
        if question["terms"] is not None:
            self._server.set_terms(Terms.from_json(question["terms"]))  # copies may come before the map
        block_store = self._server.block_store
        block_store.frozen = True
        return {
            "inventory": block_store.inventory(),
            "terms": block_store.terms.to_json() if block_store.terms else None,
        }

    async def adopt(self, question: dict[str, Any]) -> dict[str, Any]:
        """Returns when all blocks that belong here are here and have their backup."""
        epoch, server = int(question["epoch"]), self._server
        self._check(epoch)
        server.set_terms(Terms.from_json(question["terms"]))
        server.answer(server.block_store.adopt(ShardMap.from_json(question["map"])))
        server.tell_map()
        server.replicator.consider_all()
        await self._bring(epoch, question["source"], question["addresses"])
        while not server.block_store.redundant:
            self._check(epoch)
            await asyncio.sleep(0.002)
        return {}

    def complete(self, question: dict[str, Any]) -> dict[str, Any]:
        self._check(int(question["epoch"]))
        if self._server.block_store.terms is not None:
            self._server.block_store.complete()
        self._known = dict(question["servers"])
        if self._server.name in self._known:
            self._server.on_settled(int(question["version"]))
        else:
            self._server.ended.set()
        return {}

    def announce(self, question: dict[str, Any]) -> dict[str, Any]:
        """A leaving server that this leader may not know of."""
        if question["name"] not in self._known:
            self._known[question["name"]] = question["address"]
            self._announced.set()
        return {}

    def _check(self, epoch: int) -> None:
        if epoch != self.prepared:
            raise ConnectionError(f"epoch {epoch} is over; {self.prepared} has been prepared")

    async def _bring(self, epoch: int, source: list[str], addresses: dict[str, str]) -> None:
        server, block_store = self._server, self._server.block_store
        at_once = asyncio.Semaphore(_FETCHES_AT_ONCE)
        missing = block_store.missing()
        for block in missing:
            if source[block] == server.name:
                server.answer(block_store.promote(block))
                server.replicator.consider(block)
        lost = [block for block in missing if source[block] == NOBODY]
        if lost:
            await self._restore(epoch, lost)

        async def fetch(block: int) -> None:
            terms = block_store.terms
            assert terms is not None
            async with at_once:
                peer = await server.peers.to(addresses[source[block]])
                body = await peer.fetch(block, epoch, hand_over=True)
            self._check(epoch)
            if body is None:
                raise ConnectionError(f"{source[block]} no longer has block {block}")
            state = unpack(body, terms.layout.block_size_floats(block), terms.optimizer.slots)
            server.answer(block_store.install(block, state))
            server.replicator.consider(block)

        await asyncio.gather(*(fetch(block) for block in missing if source[block] not in (NOBODY, server.name)))

    async def _restore(self, epoch: int, lost: list[int]) -> None:
        """Blocks of which no copy is left: from the last checkpoint, else from the senior worker."""
        server, block_store = self._server, self._server.block_store
        assert block_store.terms is not None
        saved = await server.saver.restore(block_store.terms)
        self._check(epoch)
        for block in lost:
            server.answer(block_store.install(block, saved[block]) if saved else block_store.declare_void(block))
            server.replicator.consider(block)

    # -- the leader -------------------------------------------------------------------------------

    def _conduct(self) -> None:
        assert self._membership is not None
        if self._conducting is not None:
            self._conducting.cancel()
        self._conducting = self._server.spawn(self._lead(self._membership))

    async def _lead(self, membership: Membership) -> None:
        patience = 0
        while True:
            try:
                await self._change(membership)
                return
            except (OSError, KeyError) as error:
                log.info("%s: change to membership %d: %s", self._server.name, membership.version, error)
                patience += 1
                if patience == 40:
                    self._server.on_suspect(membership.version, self._silent(membership))
                await asyncio.sleep(RETRY_S)

    def _silent(self, membership: Membership) -> tuple[str, ...]:
        return tuple(peer.member for peer in membership.servers if peer.member != self._server.name)

    async def _change(self, membership: Membership) -> None:
        self._attempt += 1
        epoch = (membership.version << _ATTEMPT_BITS) | self._attempt
        listed = {peer.member: peer.address for peer in membership.servers}
        if membership.version > 1 and not self._known and self._server.block_store.terms is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._announced.wait(), ANNOUNCE_S)
        leaving = await self._reachable({k: v for k, v in sorted(self._known.items()) if k not in listed})
        everyone = listed | leaving
        self._known = everyone
        known = self._server.block_store.terms
        question = {
            "op": "prepare",
            "epoch": epoch,
            "participants": sorted(everyone),
            "terms": known.to_json() if known is not None else None,
        }
        answers = await self._ask_all(everyone, question)
        terms = next((Terms.from_json(a["terms"]) for a in answers.values() if a["terms"]), None)
        if terms is not None:
            inventories = {name: answer["inventory"] for name, answer in answers.items()}
            new, source = plan(epoch, listed, terms, inventories)
            await self._ask_all(
                everyone,
                {
                    "op": "map",
                    "epoch": epoch,
                    "map": new.to_json(),
                    "source": source,
                    "addresses": everyone,
                    "terms": terms.to_json(),
                },
            )
        finish = {"op": "complete", "epoch": epoch, "version": membership.version, "servers": listed}
        await self._ask_all(everyone, finish)

    async def _reachable(self, candidates: dict[str, str]) -> dict[str, str]:
        async def reach(address: str) -> bool:
            try:
                await self._server.peers.to(address)
            except OSError:
                return False
            return True

        found = await asyncio.gather(*(reach(address) for address in candidates.values()))
        return {name: candidates[name] for name, there in zip(candidates, found, strict=True) if there}

    async def _ask_all(self, servers: dict[str, str], question: dict[str, Any]) -> dict[str, dict[str, Any]]:
        async def ask(name: str, address: str) -> dict[str, Any]:
            if name != self._server.name:
                return await (await self._server.peers.to(address)).ask(question)
            if question["op"] == "map":
                return await self.adopt(question)
            return self.prepare(question) if question["op"] == "prepare" else self.complete(question)

        names = sorted(servers)
        answers = await asyncio.gather(*(ask(name, servers[name]) for name in names))
        return dict(zip(names, answers, strict=True))

    async def _leave(self, membership: Membership) -> None:
        """Make oneself known to the new leader, and stay until relieved."""
        until_s = asyncio.get_running_loop().time() + LEAVE_S
        while membership is self._membership and asyncio.get_running_loop().time() < until_s:
            if not membership.servers:
                break
            with contextlib.suppress(OSError):
                peer = await self._server.peers.to(membership.servers[0].address)
                await peer.ask({"op": "leaving", "name": self._server.name, "address": self._server.address})
            await asyncio.sleep(0.5)
        if membership is self._membership:
            self._server.ended.set()


def plan(
    epoch: int, listed: dict[str, str], terms: Terms, inventories: dict[str, list[Any]]
) -> tuple[ShardMap, list[str]]:
    """The map of an epoch, and from whom each block comes. A block's home, if it lives, has its truth; else the
    copy with most updates."""
    blocks, sizes = terms.layout.blocks, terms.layout.sizes_bytes
    best: list[tuple[bool, int, str]] = [(False, -1, NOBODY)] * blocks
    backups = [NOBODY] * blocks
    for name in sorted(inventories):
        for block, role, version in inventories[name]:
            best[block] = max(best[block], (role == Role.HOME, version, name))
            if role == Role.BACKUP and name in listed:
                backups[block] = name
    source = [name for _, _, name in best]
    homes = assign_homes(sizes, list(listed), source)
    if terms.replica_lag is None:
        new = ShardMap(epoch, listed, homes, (NOBODY,) * blocks)
    else:
        new = ShardMap(epoch, listed, homes, assign_backups(sizes, list(listed), homes, backups))
    return new, source


def _difference(ours: Terms, theirs: Terms) -> str:
    if ours.layout != theirs.layout:
        return f"another model ({ours.layout.floats} numbers instead of {theirs.layout.floats})"
    if ours.optimizer != theirs.optimizer:
        return f"{ours.optimizer} instead of {theirs.optimizer}"
    return "other options (sync, staleness, replica_lag) than the first worker of this job"
