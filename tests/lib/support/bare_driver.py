"""The smallest live driver: engine, SQLite store and local backend in one loop, without a service around them.

For kill loops: job descriptions are dropped into `HOME/inbox` and acknowledged in `HOME/accepted` when they are
committed; the ends of jobs are written to `HOME/ended`. `python -m support.bare_driver HOME CLUSTER
POLICY` loads everything once, then forks the driver anew whenever it is killed, so that fifty deaths take
seconds; each driver's pid is in `HOME/driver.pid`.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import time
from pathlib import Path

from trainmaster.backends.local.backend import LocalBackend
from trainmaster.backends.local.run_folder import replace_json
from trainmaster.backends.local.site import Options
from trainmaster.engine.engine import Engine
from trainmaster.engine.persistence import Recorder, restore
from trainmaster.engine.records import Settings
from trainmaster.estimate.declared import DeclaredSpeeds
from trainmaster.model import event as ev
from trainmaster.model.cluster import Cluster, parse_cluster
from trainmaster.model.codec import spec_from_json
from trainmaster.model.job import JobId, JobSpec
from trainmaster.policies.registry import create
from trainmaster.stores.sqlite import SqliteStore

OBSERVE_S = 2.0
POLL_S = 0.02
OPTIONS = Options(grace_s=1.0, hello_wait_s=3.0, progress_every_s=0.2)
SETTINGS = Settings(resend_ms=400, backoff_ms=50)


class BareDriver:
    def __init__(self, home: Path, cluster: Cluster, policy: str) -> None:
        self.home = home
        self.store = SqliteStore(home / "store.db")
        self.inbox: queue.Queue[ev.Event] = queue.Queue()
        image = self.store.load()
        self.engine = restore(image, cluster, create(policy), DeclaredSpeeds(), SETTINGS)
        self.recorder = Recorder(self.engine) if image.meta is not None else Recorder.of_new(self.engine)
        self.offset_ms = self.engine.now_ms - time.monotonic_ns() // 1_000_000
        slowdown = dict.fromkeys(cluster.types, 1.0)
        self.backend = LocalBackend(
            cluster, home, SETTINGS.lease, self.inbox.put, self.now_ms, slowdown, options=OPTIONS
        )  # fmt: skip

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000 + self.offset_ms

    def run(self) -> None:
        self.backend.start()
        for command in self.engine.pending_commands():
            self.backend.perform(command)
        observe_s = 0.0
        while True:
            if time.monotonic() >= observe_s:
                observe_s = time.monotonic() + OBSERVE_S
                self.backend.observe()
            submitted = self._submitted()
            events = [*submitted, *self._reports()]
            if events or self.engine.next_wake_ms <= self.now_ms():
                self._step(events)
                for event in submitted:
                    (self.home / "accepted" / event.spec.id).touch()
                    (self.home / "inbox" / f"{event.spec.id}.json").unlink(missing_ok=True)

    def _submitted(self) -> list[ev.JobSubmitted]:
        files = sorted((self.home / "inbox").glob("*.json"))
        return [ev.JobSubmitted(spec_from_json(json.loads(file.read_text()))) for file in files]

    def _reports(self) -> list[ev.Event]:
        events: list[ev.Event] = []
        try:
            events.append(self.inbox.get(timeout=POLL_S))
            while True:
                events.append(self.inbox.get_nowait())
        except queue.Empty:
            return events

    def _step(self, events: list[ev.Event]) -> None:
        commands = self.engine.step(self.now_ms(), *events)
        ended = self.engine.drain_ended()
        self.store.commit(self.recorder.changes(ended))
        for end in ended:
            replace_json(self.home / "ended" / f"{end.spec.id}.json", {"phase": end.phase.name})
        for command in commands:
            self.backend.perform(command)


def make_home(home: Path) -> None:
    for name in ("inbox", "accepted", "ended", "witness"):
        (home / name).mkdir(parents=True, exist_ok=True)


def main(arguments: list[str]) -> int:
    home, cluster, policy = Path(arguments[0]), parse_cluster(arguments[1]), arguments[2]
    # Compiled code is loaded here, once, and not by every driver.
    Engine(cluster, create(policy), DeclaredSpeeds(), SETTINGS).step(0, ev.JobSubmitted(JobSpec(JobId("warm-up"))))
    while not (home / "stop").exists():
        pid = os.fork()
        if pid == 0:
            (home / "driver.pid").write_text(str(os.getpid()))
            BareDriver(home, cluster, policy).run()
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code != -9:
            print(f"the driver ended by itself with {code}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
