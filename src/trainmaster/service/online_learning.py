"""DL2 learning on while the service runs (`trainmaster up --learn`).

A thread looks at the jobs that have ended. While policy `dl2` is in force and enough of them are new, another process
trains on them and judges the result in a shadow of them; what wins is put in force by the same request that a user
would send, and taken back by it when the jobs that end afterwards fare worse. The thread holds nothing that the control
plane waits for. What it did, and why, stands in `learning/history.jsonl` of the home folder, one line each, and in the
service's log; the state that it needs after a restart in `learning/state.json`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from trainmaster.engine.persistence import readable_ends
from trainmaster.engine.ports import EndedFilter
from trainmaster.engine.records import Ended
from trainmaster.learn.dl2.online import FEWEST_JOBS, OnlineLearner, Train, train_candidate
from trainmaster.learn.dl2.options import TrainOptions
from trainmaster.model.cluster import Cluster
from trainmaster.model.errors import InputError, TrainmasterError
from trainmaster.model.job import Phase
from trainmaster.model.units import MS_PER_S
from trainmaster.policies.dl2.policy import SLOT_S
from trainmaster.policies.dl2.weights import SHIPPED
from trainmaster.policies.registry import create
from trainmaster.service.control.control_plane import ControlPlane, Request
from trainmaster.service.control.gateway import unpacked
from trainmaster.service.control.requests import SetPolicy

PERIOD_S = 30.0
"""Between two looks at the jobs that have ended."""
ENOUGH_NEW = FEWEST_JOBS
"""A training begins when so many jobs have finished since the last one did."""
REMEMBERED = 400
"""Jobs that a training learns from, the latest."""
PATIENCE_S = 60.0


class Asks(Protocol):
    """The part of the driver that is needed here."""

    def put(self, request: Request[Any], answered: Callable[[Any], object]) -> None: ...


@dataclass
class _Recent:
    """The policy in force, and the jobs that ended last, in the order in which they ended."""

    changes = False

    def prepare(self, plane: ControlPlane) -> None:
        del plane

    def answer(self, plane: ControlPlane) -> tuple[str, list[Ended]]:
        if not is_dl2(plane.policy_name):
            return plane.policy_name, []
        finished = EndedFilter(frozenset({Phase.FINISHED}))
        records = plane.store.latest_ended(REMEMBERED, finished)  # of any number: the control plane waits meanwhile
        ended = sorted(readable_ends(records), key=lambda end: (end.ended_ms, end.spec.id))
        return plane.policy_name, ended


def is_dl2(policy: str) -> bool:
    return policy.partition(":")[0].strip() == "dl2"


def weights_of(policy: str) -> Path:
    """The weights file that a policy's text names."""
    named = getattr(create(policy), "weights", "")
    return Path(named) if named else SHIPPED


def with_weights(policy: str, weights: Path) -> str:
    """The same policy with other weights; its other options are kept."""
    name, _, options = policy.partition(":")
    kept = [part for part in options.split(",") if part.strip() and part.partition("=")[0].strip() != "weights"]
    if weights != SHIPPED:
        kept.append(f"weights={weights}")
    return name + (":" + ",".join(kept) if kept else "")


def brief_training(seed: int = 0) -> TrainOptions:
    """A few iterations from the weights in force: minutes of one core."""
    return TrainOptions(
        warm_up=False,
        update="evolution",
        rate=0.1,
        width=0.2,
        pairs=6,
        episodes=4,
        iterations=12,
        validate_every=4,
        validation_traces=6,
        seed=seed,
    )


def _train(
    cluster: Cluster, slot_s: float, options: TrainOptions, ended: Sequence[Ended], now: Path, out: Path
) -> Path:
    os.nice(19)  # jobs and service come first
    return train_candidate(ended, cluster, slot_s, now, out, options)


def _one_process() -> Executor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


class Learning:
    """`start` begins the thread; `turn` is one look, for tests to call."""

    def __init__(
        self,
        driver: Asks,
        folder: Path,
        cluster: Cluster,
        round_ms: int | None,
        say: Callable[[str], None] = lambda _: None,
        train: Train | None = None,
        executor: Executor | None = None,
    ) -> None:
        self._driver, self._folder, self._say = driver, folder, say
        folder.mkdir(exist_ok=True)
        slot_s = round_ms / MS_PER_S if round_ms else SLOT_S
        self._executor = executor or _one_process()
        train = train or partial(_train, cluster, slot_s, brief_training())
        self.learner = OnlineLearner(cluster, round_ms, folder, SHIPPED, train, self._executor)
        self._trained_ms = -1
        self._promoted_ms = -1
        self._told = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="learning", daemon=True)
        self._restore()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE_S)
        processes = dict(getattr(self._executor, "_processes", None) or {})
        self._executor.shutdown(wait=False, cancel_futures=True)
        for process in processes.values():
            process.terminate()  # else the interpreter waits at its end for a training that nobody wants any more

    def _run(self) -> None:
        while not self._stopping.wait(PERIOD_S):
            try:
                self.turn()
            except (TrainmasterError, TimeoutError, RuntimeError, OSError) as error:
                self._note(f"dl2: learning goes on later: {error}")

    # -- one look ------------------------------------------------------------------------------------

    def turn(self) -> None:
        policy, ended = self._ask(_Recent())
        if not is_dl2(policy):
            return
        learner = self.learner
        learner.teacher = getattr(create(policy), "teacher", learner.teacher)
        in_force = weights_of(policy)
        if in_force != learner.current:
            learner.previous = None  # somebody chose others by hand: there is nothing to take back
            if not learner.busy:
                learner.current = in_force
        latest_ms = ended[-1].ended_ms if ended else -1
        verdict = learner.poll(in_force)
        if verdict is not None and verdict.promoted:
            self._promoted_ms = latest_ms
            self._put_in_force(policy)
            self._save([end.spec.id for end in ended])
        elif learner.watch([end for end in ended if end.ended_ms > self._promoted_ms]):
            self._put_in_force(policy)
            self._save([])
        elif sum(end.ended_ms > self._trained_ms for end in ended) >= ENOUGH_NEW and self._offer(ended):
            self._trained_ms = latest_ms
            self._note(f"dl2: training on {len(ended)} finished jobs from {learner.current.name}")
        self._tell()

    def _offer(self, ended: list[Ended]) -> bool:
        try:
            return self.learner.offer(ended)
        except BrokenExecutor:  # its process was killed, for want of memory perhaps; it takes no more work
            self._executor = self.learner.executor = _one_process()
            return self.learner.offer(ended)

    def _put_in_force(self, policy: str) -> None:
        self._ask(SetPolicy(with_weights(policy, self.learner.current)))

    def _ask(self, request: Request[Any]) -> Any:
        done, found = threading.Event(), []

        def answered(outcome: Any) -> None:
            found.append(outcome)
            done.set()

        self._driver.put(request, answered)
        if not done.wait(PATIENCE_S):
            raise TimeoutError(f"the service did not answer in {PATIENCE_S:.0f} s")
        return unpacked(found[0])

    # -- what it tells and keeps ---------------------------------------------------------------------

    def _tell(self) -> None:
        for note in self.learner.notes[self._told :]:
            self._note(note)
        self._told = len(self.learner.notes)

    def _note(self, text: str) -> None:
        self._say(text)
        line = json.dumps({"note": text, "weights": str(self.learner.current), "trained_ms": self._trained_ms})
        try:
            with (self._folder / "history.jsonl").open("a") as out:
                out.write(line + "\n")
        except OSError as error:  # a full disk ends neither the thread nor what it was about to do
            self._say(f"dl2: history.jsonl: {error.strerror}")

    def _save(self, before: list[str]) -> None:
        learner = self.learner
        state = {
            "current": str(learner.current),
            "previous": str(learner.previous or ""),
            "promoted_ms": self._promoted_ms,
            "trained_ms": self._trained_ms,
            "rounds": learner.rounds,
            "before": before,
        }
        path = self._folder / "state.json"
        path.with_suffix(".new").write_text(json.dumps(state))
        path.with_suffix(".new").replace(path)

    def _restore(self) -> None:
        """Count candidates on from an earlier process, and go on watching what it promoted."""
        try:
            state = json.loads((self._folder / "state.json").read_text())
            trained_ms, promoted_ms, rounds = (int(state[key]) for key in ("trained_ms", "promoted_ms", "rounds"))
            current, previous, wanted = Path(state["current"]), str(state["previous"]), set(state["before"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._say(f"dl2: learning/state.json cannot be read and is left aside: {error}")
            return
        self._trained_ms, self._promoted_ms = trained_ms, promoted_ms
        self.learner.rounds, self.learner.current = rounds, current
        if previous:
            _, ended = self._ask(_Recent())
            before = [end for end in ended if end.spec.id in wanted]
            self.learner.promoted_before(current, Path(previous), before)


def check_learning(policy: str | None) -> None:
    """Refuse `--learn` where it could never do anything."""
    if find_spec("torch") is None:
        raise InputError(
            "learning needs PyTorch", "the extra 'learn'", "pip install 'trainmaster[learn]'", column="--learn"
        )
    if policy is not None and not is_dl2(policy):
        raise InputError(f"--learn with policy '{policy}'", "policy dl2", "Add --policy dl2.", column="--learn")
