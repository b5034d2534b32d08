"""The agent protocol: messages survive the wire, hostile bytes do not get in, memberships follow the rules."""

from __future__ import annotations

import contextlib
import itertools
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.gang import protocol as wire
from trainmaster.gang.endpoint import Endpoint, Gone
from trainmaster.gang.membership import Roster
from trainmaster.model.foreign import MAX_NUMBER, MAX_WHOLE

NAMES = st.text(max_size=20)
FLOATS = st.floats(-MAX_NUMBER, MAX_NUMBER)
NUMBERS = st.integers(-MAX_WHOLE, MAX_WHOLE)
PEERS = st.builds(wire.Peer, NAMES, st.sampled_from(["worker", "server"]), st.integers(0, 99))
MEMBERSHIPS = st.builds(
    wire.Membership,
    st.integers(1, MAX_WHOLE),
    st.lists(PEERS, max_size=4).map(tuple),
    NAMES,
    st.integers(0, 65535),
    NAMES,
)
MESSAGES = st.one_of(
    st.builds(wire.Hello, NAMES, NAMES, st.integers(0, MAX_WHOLE), st.booleans(), NAMES),
    st.builds(wire.Joined, NUMBERS),
    st.builds(wire.Progress, FLOATS, st.none() | FLOATS, st.none() | FLOATS, st.none() | FLOATS),
    st.builds(wire.Suspect, NUMBERS, st.lists(NAMES, max_size=3).map(tuple)),
    MEMBERSHIPS,
    st.builds(wire.Welcome, FLOATS, st.none() | MEMBERSHIPS),
    st.builds(wire.StopNotice, NAMES, FLOATS),
    st.builds(wire.Renew, NUMBERS),
    st.builds(wire.Renewed, NUMBERS),
)


@given(st.lists(MESSAGES, max_size=4), st.data())
def test_messages_survive_any_cut_of_the_stream(messages: list[wire.Message], data: st.DataObject) -> None:
    stream = b"".join(map(wire.encode, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    buffer, read = wire.LineBuffer(), []
    for begin, end in itertools.pairwise([0, *cuts, len(stream)]):
        read += buffer.feed(stream[begin:end])
    assert read == messages


@given(st.binary(max_size=200))
def test_hostile_bytes_are_a_wire_error_or_a_message(line: bytes) -> None:
    with contextlib.suppress(wire.WireError):
        wire.decode(line)


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"Hello","token":1,"member":"w","pid":1,"elastic":true}',
        b'{"type":"Joined"}',
        b'{"type":"Joined","version":true}',
        b'{"type":"Membership","version":1,"peers":[7],"master_addr":"","master_port":1}',
        b'{"type":"Nonsense"}',
        b"[]",
    ],
)
def test_mistyped_messages_are_refused(line: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(line)


def _endpoint() -> tuple[Endpoint, int]:
    listener = socket.create_server(("127.0.0.1", 0))
    return Endpoint(listener, "secret"), listener.getsockname()[1]


def _until(endpoint: Endpoint, count: int) -> list:
    inbound: list = []
    for _ in range(100):
        inbound += endpoint.poll(0.05)
        if len(inbound) >= count:
            break
    return inbound


def test_a_member_enters_with_its_token_and_is_answered() -> None:
    endpoint, port = _endpoint()
    with socket.create_connection(("127.0.0.1", port)) as member:
        hello = wire.Hello("secret", "worker-0", 1, True)
        member.sendall(wire.encode(hello) + wire.encode(wire.Joined(3)))
        assert _until(endpoint, 2) == [("worker-0", hello), ("worker-0", wire.Joined(3))]
        assert endpoint.send("worker-0", wire.Welcome(30.0))
        endpoint.poll(0.05)
        assert wire.LineBuffer().feed(member.recv(4096)) == [wire.Welcome(30.0)]
    assert _until(endpoint, 1) == [("worker-0", Gone())]
    assert not endpoint.send("worker-0", wire.Renewed(1))
    endpoint.close()


@pytest.mark.parametrize("first", [wire.Hello("wrong", "worker-0", 1, True), wire.Joined(1)])
def test_who_does_not_introduce_itself_is_shut_out(first: wire.Message) -> None:
    endpoint, port = _endpoint()
    with socket.create_connection(("127.0.0.1", port)) as member:
        member.sendall(wire.encode(first))
        member.settimeout(5)
        for _ in range(3):
            assert endpoint.poll(0.05) == []
        assert member.recv(1) == b""
    endpoint.close()


def _roster() -> Roster:
    ports = itertools.count(29500)
    return Roster(lambda _: "127.0.0.1", lambda _: next(ports))


def test_nobody_is_disturbed_before_the_newcomers_are_there() -> None:
    roster = _roster()
    first, second = roster.admit("worker"), roster.admit("worker")
    assert roster.advance() is None
    roster.hello(first, True, "")
    assert roster.advance() is None
    roster.hello(second, True, "")
    membership = roster.advance()
    assert membership is not None and [peer.member for peer in membership.workers] == ["worker-0", "worker-1"]
    roster.joined(first, 1)
    assert not roster.settled
    roster.joined(second, 1)
    assert roster.settled and roster.advance() is None


def test_the_senior_survivor_becomes_rank_0_and_names_are_not_reused() -> None:
    roster = _roster()
    for name in [roster.admit("worker"), roster.admit("worker"), roster.admit("server")]:
        roster.hello(name, True, f"{name}:1")
    assert roster.advance() is not None
    roster.dismiss(["worker-0"], "died")
    newcomer = roster.admit("worker")
    assert newcomer == "worker-2"
    roster.hello(newcomer, True, "")
    membership = roster.advance()
    assert membership is not None and membership.version == 2 and membership.why == "died"
    assert [(peer.member, peer.rank) for peer in membership.peers] == [
        ("worker-1", 0),
        ("worker-2", 1),
        ("server-0", 0),
    ]
    assert membership.servers[0].address == "server-0:1"
    assert membership.find("worker-0") is None


def test_survivors_do_not_wait_for_newcomers() -> None:
    roster = Roster(lambda _: "127.0.0.1", int)
    for _ in range(2):
        roster.hello(roster.admit(wire.WORKER), True, "")
    assert roster.advance() is not None
    newcomer = roster.admit(wire.WORKER, why="grow")
    roster.dismiss(["worker-0"], "it died")
    assert roster.advance() is None  # the newcomer still loads
    urgent = roster.advance(without_awaited=True)
    assert urgent is not None
    assert [peer.member for peer in urgent.peers] == ["worker-1"]
    roster.joined("worker-1", urgent.version)
    assert not roster.settled  # somebody is still to come
    roster.hello(newcomer, True, "")
    last = roster.advance()
    assert last is not None
    assert [(peer.member, peer.rank) for peer in last.peers] == [("worker-1", 0), ("worker-2", 1)]
