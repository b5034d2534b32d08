"""A parameter server as a member of a job: its line to the agent, memberships, the end; or as a thread of a worker."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import threading
from pathlib import Path

from trainmaster.gang.protocol import EXIT_STOPPED, SERVER, WORKER, Hello, Membership, Peer, Progress
from trainmaster.runtime.checkpoint import Checkpoints, Folder
from trainmaster.runtime.link import AgentLink
from trainmaster.runtime.process_env import ProcessEnv
from trainmaster.runtime.ps.saving import Saver
from trainmaster.runtime.ps.server import ShardServer

log = logging.getLogger("trainmaster.ps")

LAST_SAVE_S = 8.0
"""At most so long for the last checkpoint when nobody says how much time there is."""
_LOOPBACK = ("", "127.0.0.1", "localhost", "::1")


def checkpoints_in(folder: Path | None, keep: int = 3) -> Checkpoints | None:
    return Checkpoints(Folder(folder / "ps"), keep) if folder is not None else None


def serve(place: ProcessEnv) -> int:
    """Serve until told to leave or stop; the process's exit code."""
    return asyncio.run(_serve(place))


async def _serve(place: ProcessEnv) -> int:
    loop = asyncio.get_running_loop()
    saver = Saver(checkpoints_in(place.checkpoint_dir))
    server = ShardServer(place.member, place.agent_token, saver)
    host, advertise = _where(place.master_addr)
    server.start(host, advertise=advertise)
    hello = Hello(place.agent_token, place.member, os.getpid(), elastic=True, address=server.address)
    link = AgentLink(place.agent, hello)
    saver.check_lease = link.check_lease
    server.on_settled, server.on_suspect = link.joined, link.suspect
    await loop.run_in_executor(None, link.open)
    stopping = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    threading.Thread(target=_listen, args=(link, server, loop, stopping), daemon=True).start()
    end, stop = asyncio.create_task(server.ended.wait()), asyncio.create_task(stopping.wait())
    await asyncio.wait((end, stop), return_when=asyncio.FIRST_COMPLETED)
    code = 0
    if not end.done():
        code = EXIT_STOPPED
        notice = link.stop_notice
        await _stop(server, link, 0.7 * notice.grace_s if notice is not None else LAST_SAVE_S)
    for task in (end, stop):
        task.cancel()
    await loop.run_in_executor(None, link.close)
    await server.close()
    return code


def _listen(link: AgentLink, server: ShardServer, loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    """Carries what the agent says into the event loop."""
    heard = 0
    while not loop.is_closed():
        link.wait(lambda heard=heard: link.stop_notice is not None or _version(link.membership) > heard, None)
        membership = link.membership
        if membership is not None and membership.version > heard:
            heard = membership.version
            loop.call_soon_threadsafe(server.set_membership, membership)
        if link.stop_notice is not None:
            loop.call_soon_threadsafe(stopping.set)
            return


def _version(membership: Membership | None) -> int:
    return membership.version if membership is not None else 0


async def _stop(server: ShardServer, link: AgentLink, time_s: float) -> None:
    """The leader saves when the workers have gone, then tells the others that they may go."""
    membership = link.membership
    others = [peer for peer in membership.servers if peer.member != server.name] if membership is not None else []
    if membership is None or not membership.servers or membership.servers[0].member != server.name:
        try:
            await asyncio.wait_for(server.ended.wait(), time_s)
        except TimeoutError:
            log.warning("%s: the leader did not finish its checkpoint in time", server.name)
        return
    loop = asyncio.get_running_loop()
    until_s = loop.time() + time_s
    while server.workers_connected and loop.time() < until_s - 0.75 * time_s:
        await asyncio.sleep(0.02)
    try:
        if server.block_store.terms is not None:
            saved = (await asyncio.wait_for(server.saver.save(server), max(0.1, until_s - loop.time())))["saved"]
            if saved is not None:
                link.report(Progress(saved, saved=saved))
    except (Exception, TimeoutError):
        log.exception("%s: the last checkpoint failed", server.name)
    for peer in others:
        try:
            await (await server.peers.to(peer.address)).ask({"op": "go"})
        except OSError:
            log.info("%s has gone already", peer.member)


def _where(master: str) -> tuple[str, str]:
    """(address to listen on, address to tell others): loopback if the job is on one machine."""
    if master in _LOOPBACK:
        return "127.0.0.1", "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((master, 9))  # sends nothing: it asks the routing table which address is ours
        return "0.0.0.0", probe.getsockname()[0]


class InnerServer:
    """A server inside this process, for a worker that nobody manages."""

    def __init__(self, folder: Path | None) -> None:
        self.token = secrets.token_hex(16)
        self.membership: Membership | None = None
        self._folder = folder
        self._save = False
        self._loop = asyncio.new_event_loop()
        self._server: ShardServer | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trainmaster-ps", daemon=True)
        self._thread.start()
        self._ready.wait()

    def close(self, save: bool = False) -> None:
        self._save = save
        if self._server is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._server.ended.set)
        self._thread.join(10.0)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = self._server = ShardServer("server-0", self.token, Saver(checkpoints_in(self._folder)))
        server.start()
        peers = (Peer("worker-0", WORKER, 0), Peer("server-0", SERVER, 0, address=server.address))
        self.membership = Membership(1, peers, "127.0.0.1", 0)
        server.set_membership(self.membership)
        self._ready.set()
        await server.ended.wait()
        if self._save and server.block_store.terms is not None:
            await server.saver.save(server)
        await server.close()
