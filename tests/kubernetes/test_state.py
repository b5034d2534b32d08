"""State in the API server, and who may write it: the journal's contracts, and the election."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator

import pytest

from support.kubernetes.cluster import KubeCluster
from support.loop_thread import LoopThread
from trainmaster.backends.kubernetes.api.client import KubeClient
from trainmaster.backends.kubernetes.api.config import load_config
from trainmaster.backends.kubernetes.config_map_blobs import ConfigMapBlobs
from trainmaster.backends.kubernetes.election import Election, ElectionRule
from trainmaster.engine.ports import Commit, StoreError
from trainmaster.stores.journal import JournalStore, Overtaken
from trainmaster.testing.store_contract import check_store


@pytest.fixture(scope="module")
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("test")
    yield thread
    thread.close()


@pytest.fixture(scope="module")
def client(fake_cluster: KubeCluster, thread: LoopThread) -> Iterator[KubeClient]:
    client = thread.call(KubeClient(load_config(fake_cluster.kubeconfig)).open(), 20)
    yield client
    thread.call(client.close(), 20)


def test_the_store_keeps_its_contracts(client: KubeClient, thread: LoopThread) -> None:
    count = 0

    def new() -> JournalStore:
        nonlocal count
        count += 1
        blobs = ConfigMapBlobs(client, thread, "default", f"contract-{os.getpid()}-{count}")
        return JournalStore(blobs, "one", snapshot_entries=3)

    def reopen(store: JournalStore) -> JournalStore:
        store.close()
        return JournalStore(store._blobs, "two", snapshot_entries=3)

    check_store(new, reopen)  # type: ignore[arg-type]


def test_a_deposed_writer_is_fenced(client: KubeClient, thread: LoopThread) -> None:
    leads = True
    blobs = ConfigMapBlobs(client, thread, "default", f"fence-{os.getpid()}")
    gated = ConfigMapBlobs(client, thread, "default", f"fence-{os.getpid()}", may_write=lambda: leads)
    one, two = JournalStore(gated, "one"), JournalStore(blobs, "two")
    one.commit(Commit({"a": {"n": 1}}, {}, {"n": 1}))
    two.claim()
    with pytest.raises(Overtaken):
        one.commit(Commit({"a": {"n": 2}}, {}, {"n": 2}))
    leads = False
    with pytest.raises(StoreError, match="does not lead"):
        one.commit(Commit({"a": {"n": 2}}, {}, {"n": 2}))
    assert two.load().jobs == {"a": {"n": 1}}


def test_ten_thousand_jobs_are_one_commit(client: KubeClient, thread: LoopThread) -> None:
    blobs = ConfigMapBlobs(client, thread, "default", f"large-{os.getpid()}")
    store = JournalStore(blobs, "one")
    jobs = {f"job-{n}": {"random": os.urandom(100).hex(), "n": n} for n in range(10_000)}
    store.commit(Commit(jobs, {}, {"n": 1}))
    assert JournalStore(blobs, "two").load_active().jobs == jobs


def test_one_leads_at_a_time_and_another_follows(client: KubeClient, thread: LoopThread) -> None:
    rule = ElectionRule(lease_s=6.0, give_up_s=5.0, renew_s=0.5, request_s=2.0)
    history: list[tuple[float, str, bool]] = []

    async def candidate(name: str) -> tuple[Election, asyncio.Task[None]]:
        election = Election(
            client, "default", f"lease-{os.getpid()}", name, rule=rule,
            on_lead=lambda: history.append((time.monotonic(), name, True)),
            on_lose=lambda: history.append((time.monotonic(), name, False)),
        )  # fmt: skip
        return election, asyncio.ensure_future(election.run())

    one, task_one = thread.call(candidate("one"), 10)
    _until(lambda: one.leading())
    two, task_two = thread.call(candidate("two"), 10)
    time.sleep(8.0)
    assert one.leading()
    assert not two.leading()
    thread.loop.call_soon_threadsafe(task_one.cancel)  # as if it had died: it does not give the lease back
    cancelled_s = time.monotonic()
    _until(lambda: two.leading())
    assert time.monotonic() - cancelled_s < rule.lease_s + 5.0
    assert [(name, leads) for _, name, leads in history] == [("one", True), ("one", False), ("two", True)]
    assert not one.leading()
    # A release hands over at once.
    three, task_three = thread.call(candidate("three"), 10)
    time.sleep(0.5)
    thread.call(two.release(), 10)
    released_s = time.monotonic()
    _until(lambda: three.leading())
    assert time.monotonic() - released_s < 4.0
    assert not two.leading()
    for task in (task_two, task_three):
        thread.loop.call_soon_threadsafe(task.cancel)


def _until(truth: object, patience_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + patience_s
    while not truth():  # type: ignore[operator]
        assert time.monotonic() < deadline_s, "it did not come about"
        time.sleep(0.05)
