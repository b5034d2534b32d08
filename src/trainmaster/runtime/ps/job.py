"""What a training script uses: join, step, push.

    with ps.join(model, ps.Sgd(lr=0.1)) as job:     # a process that is a server stays in here
        for step in job.steps(1000):
            loss = ...
            loss.backward()
            job.push_pull(loss=loss.item())

The model's parameters become views of one flat vector which the servers' answers are read into; its gradients
are views of another, which is sent. Nothing is copied on the way.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from trainmaster.gang.protocol import EXIT_STOPPED, SERVER, Membership
from trainmaster.model.errors import InputError, TrainmasterError
from trainmaster.runtime.process_env import ProcessEnv, read_process_env
from trainmaster.runtime.ps.exchange import Exchange, Stopped
from trainmaster.runtime.ps.layout import make_layout
from trainmaster.runtime.ps.optimizer import Floats, Optimizer
from trainmaster.runtime.ps.process import InnerServer, serve
from trainmaster.runtime.ps.terms import Terms
from trainmaster.runtime.ps.torch_views import bind, is_module, tensors_of
from trainmaster.runtime.training_session import Session

FIRST_MEMBERSHIP_S = 600.0


def serve_if_server() -> None:
    """In a server process: serve, then exit. Call it first, and a server never loads torch or data."""
    place = read_process_env()
    if place.managed and place.role == SERVER:
        sys.exit(serve(place))


def join(
    parameters: Any,
    optimizer: Optimizer,
    *,
    sync: bool = False,
    staleness: int | None = None,
    replica_lag: int | None = 16,
    block_bytes: int | None = None,
    save_every: int | None = None,
    checkpoint_dir: Path | str | None = None,
) -> PsJob:
    """`parameters`: a torch module, or a mapping of names to float32 arrays or tensors, holding first values.

    `save_every`: gradients between checkpoints (None: only at the end). Unmanaged, the server is a thread of this
    process and checkpoints go to `checkpoint_dir`, if given.
    """
    serve_if_server()
    place = read_process_env()
    named = tensors_of(parameters)
    layout = make_layout([(name, tuple(value.shape)) for name, value in named.items()], block_bytes)
    terms = Terms(layout, optimizer, sync, staleness, replica_lag)
    if save_every is not None and save_every < 1:
        raise InputError(f"save_every is {save_every}", "a whole number, at least 1", column="save_every")
    folder = place.checkpoint_dir if checkpoint_dir is None or place.managed else Path(checkpoint_dir)
    return PsJob(place, terms, parameters, named, save_every, folder)


class PsJob:
    """A worker's part in the job. `parameters[name]` and `gradients[name]` are views; fill the latter, then
    `push_pull` (a torch module's own parameters and gradients are such views)."""

    def __init__(
        self,
        place: ProcessEnv,
        terms: Terms,
        model: Any,
        named: Mapping[str, Any],
        save_every: int | None,
        folder: Path | None,
    ) -> None:
        self._place = place
        self._save_every = save_every
        self._session = Session(place, elastic=True, on_membership=lambda _: None).open()
        self._inner = None if place.managed else InnerServer(folder)
        token = place.agent_token if self._inner is None else self._inner.token
        self._version = 0
        self._membership: Membership | None = None if self._inner is None else self._inner.membership
        link = self._session.link
        if link is not None and link.wait_for_membership(0, FIRST_MEMBERSHIP_S) is None:
            self._session.leave(EXIT_STOPPED)
        name = f"{place.member}.{secrets.token_hex(4)}"
        self._exchange = Exchange(name, token, terms, self._servers, self._is_senior, self._cancelled)
        self.parameters: dict[str, Any] = {}
        self.gradients: dict[str, Any] = {}
        for key, shape, span in terms.layout.spans():
            self.parameters[key] = self._exchange.params[span].reshape(shape)
            self.gradients[key] = self._exchange.gradients[span].reshape(shape)
            self.parameters[key][...] = np.asarray(named[key].detach() if hasattr(named[key], "detach") else named[key])
        self._bound = bind(model, self.parameters, self.gradients) if is_module(model) else None
        try:
            self._exchange.join()
        except Stopped:
            self._end()
        except TrainmasterError:
            self.close()
            raise
        self._join_membership()
        self._session.work_done = self._saved_at = self.work
        self._session.begin_step()

    # -- for the script ---------------------------------------------------------------------------

    @property
    def work(self) -> int:
        """Gradients that the whole job has applied, over all workers and attempts."""
        return self._exchange.work

    @property
    def saved(self) -> float | None:
        return self._session.saved

    @property
    def workers(self) -> int:
        return len(self._membership.workers) if self._membership is not None else 1

    @property
    def rank(self) -> int:
        own = self._membership.find(self._place.member) if self._membership is not None else None
        return own.rank if own is not None else 0

    @property
    def flat_parameters(self) -> Floats:
        return self._exchange.params

    @property
    def moved_blocks(self) -> int:
        """Blocks this worker has had to send again because they had moved."""
        return self._exchange.moved_blocks

    def steps(self, total: float | None = None) -> Iterator[int]:
        """Numbers of this worker's steps, until the job as a whole has done `total` (default: as submitted).

        Ends the process when the worker is to leave (exit code 0) or the job is to stop (saved by the servers).
        """
        total = self._session.total_steps(total)
        step = 0
        while self.work < total:
            self._session.check_lease()
            yield step
            step += 1
            self._go_along()
        if self._is_senior():
            self.save()
            self._session.finish()

    def push_pull(self, loss: float | None = None, rate_factor: float = 1.0, zero: bool = True) -> None:
        """Give the gradients, get fresh parameters; gradients are then zero again (`zero=False` spares the time
        when they are written anew in every step, not added to)."""
        if self._bound is not None:
            self._bound.collect()
        self._session.stretch_step()
        self._session.check_lease()
        try:
            self._exchange.push(rate_factor)
        except Stopped:
            self._end()
        if zero:
            self._exchange.gradients.fill(0.0)
        self._session.reporting = self._is_senior()
        self._session.report(loss=loss)
        self._session.count_step(self.work)
        if self._session.reporting and self._save_every is not None and self.work >= self._saved_at + self._save_every:
            self.save()
        self._session.begin_step()

    def save(self) -> float | None:
        """A checkpoint now; the work that it holds."""
        self._session.check_lease()
        try:
            self._session.saved = self._exchange.save()
        except Stopped:
            self._end()
        self._saved_at = self.work
        self._session.report()
        return self.saved

    def close(self) -> None:
        self._exchange.close()
        self._session.close()
        if self._inner is not None:
            self._inner.close(save=bool(self._session.stop_requested))

    def __enter__(self) -> PsJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the agent --------------------------------------------------------------------------------

    def _servers(self) -> dict[str, str]:
        self._hear()
        return {peer.member: peer.address for peer in self._membership.servers} if self._membership else {}

    def _hear(self) -> None:
        link = self._session.link
        if link is not None and link.membership is not None:
            self._membership = link.membership

    def _is_senior(self) -> bool:
        self._hear()
        membership = self._membership
        return (
            membership is not None and bool(membership.workers) and membership.workers[0].member == self._place.member
        )

    def _left_out(self) -> bool:
        self._hear()
        return self._membership is not None and self._membership.find(self._place.member) is None

    def _cancelled(self) -> bool:
        return bool(self._session.stop_requested) or self._left_out()

    def _go_along(self) -> None:
        """Between two steps: leave, stop, or go over to a new membership."""
        if self._cancelled():
            self._end()
        self._join_membership()

    def _join_membership(self) -> None:
        self._hear()
        link = self._session.link
        if link is not None and self._membership is not None and self._membership.version > self._version:
            self._version = self._membership.version
            link.joined(self._version)

    def _end(self) -> NoReturn:
        """Leave with the last figures: the servers save."""
        self._session.reporting = self._is_senior()
        self._session.report(work_done=self.work)
        self.close()
        raise SystemExit(EXIT_STOPPED if self._session.stop_requested else 0)
