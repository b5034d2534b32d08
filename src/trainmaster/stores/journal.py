"""A store made of small immutable blobs in a place that can do one thing for certain: create a name only once.

Every commit creates the blob with the next number; whoever creates it has committed, and who finds the number taken
has been overtaken by another writer (`Overtaken`) and must read again. So of two services that both believe to lead,
only one gets on. From time to time everything is written down in a snapshot, and the entries before it are deleted.

j-<number>           an entry: what one commit changed, or a pruning
p-<number>-<writer>-<k>   parts of an entry or snapshot that is too large for one blob
s-<number>           a snapshot: everything up to and with that entry

Entries and snapshots carry the format that they are written in; those of version 0.1 say nothing and have format 1.
A journal with a gap (an entry or a part is missing, or cannot be read) is refused as a whole: to go on without what is
missing would lose jobs.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from trainmaster.engine.ports import Commit, JsonObject, StoredState, StoreError
from trainmaster.stores.memory import Dump, Encoded, MemoryStore, encoded

FORMAT = 1
"""A journal of a later format is refused and left as it is."""
PART_BYTES = 900_000
SNAPSHOT_ENTRIES = 400
SNAPSHOT_BYTES = 8_000_000
"""A snapshot is taken after so many entries, or when they have grown to so much."""
CLAIMS = 20
"""A writer that was overtaken so many times in a row gives up; its caller pauses."""


class BlobTaken(Exception):
    """There is a blob of that name."""


class Overtaken(StoreError):
    """Another writer has committed: what this one believes is out of date."""


class Damaged(StoreError):
    """Something of the journal is missing or cannot be read."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the journal of the service's state has a gap: {what}. Nothing was changed. Restore it from a backup; or, "
            "to begin anew, stop the service and delete the whole journal: jobs are taken again from their "
            "TrainingJobs, their progress and history are lost"
        )


class Blobs(Protocol):
    """Where blobs are kept. Methods raise `StoreError` when it does not answer; a creation may have happened then."""

    def create(self, name: str, data: bytes) -> None:
        """`BlobTaken` if the name exists."""
        ...

    def read(self, name: str) -> bytes | None: ...

    def read_all(self) -> dict[str, bytes]: ...

    def delete(self, names: Sequence[str]) -> None:
        """Those that are there."""
        ...


class JournalStore(MemoryStore):
    """See `trainmaster.engine.ports.Archive`. What was read or committed is in memory. One thread at a time; snapshots
    are written by one of their own."""

    def __init__(self, blobs: Blobs, writer: str, *, snapshot_entries: int = 0) -> None:
        """`writer` tells this process from others: it goes into names, and into every entry. `snapshot_entries`
        0: as many as usual."""
        super().__init__()
        self._blobs = blobs
        self._writer = writer
        self._snapshot_entries = snapshot_entries or SNAPSHOT_ENTRIES
        self._snapshotting: threading.Thread | None = None
        self._parts = 0
        self.snapshot_fault: StoreError | None = None
        self._number = 0
        self._read()

    # -- writing -------------------------------------------------------------------------------------

    def commit(self, commit: Commit) -> None:
        self._keep(encoded(commit))

    def _keep(self, delta: Encoded) -> None:
        self._append({"commit": delta._asdict()})
        self.apply(delta)
        self._snapshot_if_due()

    def prune(self, before_ms: int, keep_ended: int, keep_log: int) -> list[str]:
        before = self.dump()
        pruned = MemoryStore.of(before)
        forgotten = pruned.prune(before_ms, keep_ended, keep_log)
        if pruned.dump() != before:
            self._append({"prune": [before_ms, keep_ended, keep_log]})
            self.become(pruned.dump())
        return forgotten

    def claim(self) -> None:
        """Write an empty entry: from now on whoever wrote before finds itself overtaken. Reads again until it is so."""
        for _ in range(CLAIMS):
            try:
                self._append({"claim": self._writer})
                return
            except Overtaken:
                self._read()
        raise Overtaken(f"other services have written to the journal {CLAIMS} times meanwhile; is there more than one?")

    def _append(self, entry: JsonObject) -> None:
        number = self._number + 1
        data = self._packed(number, {**entry, "writer": self._writer, "format": FORMAT})
        name = f"j-{number:012d}"
        try:
            self._blobs.create(name, data)
        except BlobTaken:
            # An answer may have been lost, and the request repeated: then the entry is ours.
            if self._blobs.read(name) != data:
                raise Overtaken(f"entry {number} of the journal was written by another service") from None
        self._number = number
        self._since += 1
        self._bytes_since += len(data)

    def _packed(self, number: int, content: JsonObject) -> bytes:
        """Compressed; parts that do not fit into one blob are written at once, and named in it."""
        data = zlib.compress(json.dumps(content, separators=(",", ":")).encode(), 1)
        if len(data) <= PART_BYTES:
            return data
        names = []
        for start in range(0, len(data), PART_BYTES):
            self._parts += 1
            name = f"p-{number:012d}-{self._writer}-{self._parts}"
            self._blobs.create(name, data[start : start + PART_BYTES])
            names.append(name)
        return json.dumps({"parts": names}).encode()

    # -- snapshots -------------------------------------------------------------------------------------

    def _snapshot_if_due(self) -> None:
        running = self._snapshotting is not None and self._snapshotting.is_alive()
        if running or (self._since < self._snapshot_entries and self._bytes_since < SNAPSHOT_BYTES):
            return
        dump, number = self.dump(), self._number
        self._since = self._bytes_since = 0
        self._snapshotting = threading.Thread(target=self._snapshot, args=(number, dump), name="snapshot", daemon=True)
        self._snapshotting.start()

    def _snapshot(self, number: int, dump: Dump) -> None:
        """Entries are immutable, so every writer's snapshot of the same number says the same: the first one counts."""
        try:
            data = self._packed(number, {"dump": dump._asdict(), "format": FORMAT})
            try:
                self._blobs.create(f"s-{number:012d}", data)
            except BlobTaken:
                return
            self._delete_before(number, self._blobs.read_all())
            self.snapshot_fault = None
        except StoreError as error:
            self.snapshot_fault = error  # nothing is lost: the entries stay until a later one succeeds

    def _delete_before(self, number: int, found: Mapping[str, bytes]) -> None:
        keep = set(_part_names(found.get(f"s-{number:012d}", b"")))
        old = [
            name
            for name in found
            if name not in keep
            and ((name[0] == "s" and _number(name) < number) or (name[0] in "jp" and _number(name) <= number))
        ]
        self._blobs.delete(sorted(old))

    # -- reading -----------------------------------------------------------------------------------------

    def _read(self) -> None:
        """`Damaged` if anything between the newest snapshot and the last entry is not there, whole."""
        found = self._blobs.read_all()
        memory, number = _newest_snapshot(found)
        last = max((_number(name) for name in found if name[0] in "js"), default=0)
        if last < self._number:
            raise Damaged(f"it ends with entry {last}, this service has seen entry {self._number}")
        since = bytes_since = 0
        while number < last:
            name = f"j-{number + 1:012d}"
            if name not in found:
                raise Damaged(f"entry {name} is missing, the last one is {last}")
            _replay(memory, _unpacked(name, found))
            number += 1
            since += 1
            bytes_since += len(found[name])
        self.become(memory.dump())
        self._number, self._since, self._bytes_since = number, since, bytes_since

    def load(self) -> StoredState:
        self._read()
        return super().load()

    def load_active(self) -> StoredState:
        self._read()
        return super().load_active()

    def close(self) -> None:
        if self._snapshotting is not None:
            self._snapshotting.join(10.0)


def _number(name: str) -> int:
    digits = name.split("-")[1]
    return int(digits) if digits.isdigit() else 0


def _part_names(data: bytes) -> list[str]:
    return json.loads(data)["parts"] if data[:1] == b"{" else []


def _unpacked(name: str, found: Mapping[str, bytes]) -> Any:
    """The content; `Damaged` when a part is missing or it cannot be read."""
    try:
        names = _part_names(found[name])
        content = json.loads(zlib.decompress(b"".join(found[part] for part in names) if names else found[name]))
        version = int(content.get("format", 1))
    except KeyError as error:
        raise Damaged(f"{error.args[0]}, a part of {name}, is missing") from None
    except (ValueError, TypeError, AttributeError, zlib.error) as error:
        raise Damaged(f"{name} cannot be read: {error}") from None
    if version > FORMAT:
        raise StoreError(
            f"the journal has format {version}, this version of trainmaster knows {FORMAT}; "
            "start the version that wrote it, or a newer one"
        )
    return content


def _newest_snapshot(found: Mapping[str, bytes]) -> tuple[MemoryStore, int]:
    """The newest that is whole: one that is not may have been left half written, before its entries were deleted."""
    for name in sorted((name for name in found if name.startswith("s-")), reverse=True):
        try:
            content = _unpacked(name, found)
        except Damaged:
            continue
        return MemoryStore.of(_dump_of(content["dump"])), _number(name)
    return MemoryStore(), 0


def _replay(memory: MemoryStore, entry: JsonObject) -> None:
    if "commit" in entry:
        delta = entry["commit"]
        delta["log"] = [tuple(line) for line in delta["log"]]
        memory.apply(Encoded(**delta))
    elif "prune" in entry:
        memory.prune(*entry["prune"])


def _dump_of(content: JsonObject) -> Dump:
    content["log"] = [tuple(line) for line in content["log"]]
    content["requests"] = {key: (at_ms, answer) for key, (at_ms, answer) in content["requests"].items()}
    return Dump(**content)
