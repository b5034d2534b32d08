"""A copy of a collection: what is told when it is listed, in pages, for the first time and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from trainmaster.backends.kubernetes.api.client import Expired
from trainmaster.backends.kubernetes.api.reflector import Reflector

Object = dict[str, Any]


def thing(name: str, version: int, uid: str = "") -> Object:
    meta = {"namespace": "a", "name": name, "uid": uid or name, "resourceVersion": str(version), "managedFields": []}
    return {"metadata": meta}


class Listings:
    """Answers each list with the pages given; a page that is an error is raised. Notes how many whole objects of
    earlier pages were still untrimmed when the next was asked for."""

    def __init__(self, *lists: list[list[Object] | Exception]) -> None:
        self.lists = list(lists)
        self.untrimmed = 0

    async def pages(self, _path: str, *, page: int, **_params: str) -> AsyncIterator[tuple[list[Object], str]]:
        assert page > 0
        given: list[Object] = []
        for part in self.lists.pop(0):
            self.untrimmed += sum("managedFields" in item["metadata"] for item in given)
            if isinstance(part, Exception):
                raise part
            given += part
            yield part, "9"


def listed(client: Listings, times: int = 1) -> tuple[list[tuple[str, str]], Reflector]:
    told: list[tuple[str, str]] = []

    async def story() -> Reflector:
        reflector = Reflector(client, "/x", lambda kind, now, _: told.append((kind, now["metadata"]["name"])))  # type: ignore[arg-type]
        for _ in range(times):
            try:
                await reflector._list()
            except Expired:
                assert not reflector.synced.is_set()
        return reflector

    return told, asyncio.run(story())


def test_each_page_is_taken_and_trimmed_before_the_next_is_asked_for() -> None:
    client = Listings([[thing("a", 1), thing("b", 2)], [thing("c", 3)]])
    told, reflector = listed(client)
    assert told == [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c")]
    assert client.untrimmed == 0
    assert reflector.version == "9"
    assert reflector.synced.is_set()


def test_a_second_list_tells_what_changed_was_made_again_or_is_gone() -> None:
    first: list[Any] = [[thing("kept", 1), thing("changed", 1), thing("anew", 1, "old")], [thing("gone", 1)]]
    again: list[Any] = [[thing("changed", 5)], [thing("anew", 6, "new"), thing("kept", 1)]]
    told, reflector = listed(Listings(first, again), 2)
    assert told[4:] == [("MODIFIED", "changed"), ("DELETED", "anew"), ("ADDED", "anew"), ("DELETED", "gone")]
    assert set(reflector.objects) == {("a", "kept"), ("a", "changed"), ("a", "anew")}


def test_a_list_that_breaks_off_says_of_nothing_that_it_is_gone() -> None:
    first: list[Any] = [[thing("a", 1)], Expired(410, "Expired", "")]
    again: list[Any] = [[thing("a", 1)], [thing("b", 2)]]
    told, reflector = listed(Listings(first, again), 2)
    assert told == [("ADDED", "a"), ("ADDED", "b")]
    assert reflector.synced.is_set()


class SilentWatch(Listings):
    """A watch that is broken without anybody knowing: it says nothing."""

    async def watch(self, _path: str, _version: str, **_params: str) -> AsyncIterator[tuple[str, Object]]:
        await asyncio.sleep(3600)
        yield "BOOKMARK", thing("never", 0)


def test_who_begins_to_act_is_told_what_is_there_by_then() -> None:
    """Or a standby whose watch was broken would take jobs that it has not heard of for deleted ones."""

    async def story() -> set[tuple[str, str]]:
        client = SilentWatch([[thing("old", 1)]], [[thing("old", 1), thing("new", 2)]])
        reflector = Reflector(client, "/x", lambda *_: None)  # type: ignore[arg-type]
        run = asyncio.ensure_future(reflector.run())
        await reflector.synced.wait()
        await asyncio.sleep(0)
        assert set(reflector.objects) == {("a", "old")}
        await asyncio.wait_for(reflector.refresh(), 5)
        run.cancel()
        return set(reflector.objects)

    assert asyncio.run(story()) == {("a", "old"), ("a", "new")}


def test_a_list_that_was_asked_for_before_is_not_fresh() -> None:
    async def story() -> int:
        client = SilentWatch([[thing("old", 1)]], [[thing("new", 2)]])
        reflector = Reflector(client, "/x", lambda *_: None)  # type: ignore[arg-type]
        listing = asyncio.ensure_future(reflector._list())
        await asyncio.sleep(0)
        waits = asyncio.ensure_future(reflector.refresh())
        await listing
        run = asyncio.ensure_future(reflector.run())
        await asyncio.wait_for(waits, 5)
        run.cancel()
        return reflector.lists

    assert asyncio.run(story()) == 2


def test_an_object_that_cannot_be_taken_is_set_aside_alone() -> None:
    told: list[str] = []

    def read(_kind: str, now: Object, _before: Object | None) -> None:
        told.append(now["metadata"]["name"])
        if now["metadata"]["name"] == "odd":
            raise ValueError("invalid literal for int() with base 10: '²'")

    async def story() -> Reflector:
        client = Listings([[thing("odd", 1), thing("good", 2)]])
        reflector = Reflector(client, "/x", read)  # type: ignore[arg-type]
        reflector.on_set_aside = lambda name, _: aside.append(name)
        await reflector._list()
        reflector._take("MODIFIED", thing("odd", 3))
        assert len(reflector.set_aside) == 1
        reflector._take("DELETED", thing("odd", 4))
        return reflector

    aside: list[str] = []
    reflector = asyncio.run(story())
    assert told == ["odd", "good", "odd", "odd"] and reflector.set_aside == {} and reflector.synced.is_set()
    assert len(aside) == 1 and "odd of /x" in aside[0], "told once"
