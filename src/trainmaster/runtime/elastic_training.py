"""Data-parallel training whose workers come and go while it trains.

    with runtime.elastic(model, optimizer, samples=len(x), global_batch=64, epochs=3) as training:
        for batch in training:
            loss = criterion(model(x[batch.indices]), y[batch.indices])   # a mean over the batch
            training.step(loss)

A step takes the next samples of the epoch whatever the number of workers; each worker's gradient is weighted
by its share, so the update is the same for every number of workers, up to floating point. A step that a
death interrupts is discarded by all survivors, or completed by all: who has applied it hands its state to
those who have not. See `docs/runtime.md` for what is guaranteed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from trainmaster.gang.protocol import EXIT_STOPPED
from trainmaster.runtime import sampler
from trainmaster.runtime.batches import BatchRule
from trainmaster.runtime.buckets import BUCKET_BYTES, Buckets
from trainmaster.runtime.checkpoint import Location
from trainmaster.runtime.errors import IncompatibleState, MisuseError
from trainmaster.runtime.group import Group, GroupFault, Preparation
from trainmaster.runtime.membership import CARRIED, Departure, GroupMembership, StopAsked
from trainmaster.runtime.replica import Replica, Stateful, hand_over, survey
from trainmaster.runtime.training_session import Session


@dataclass(frozen=True)
class Batch:
    """This worker's samples of (a part of) step `step`."""

    indices: torch.Tensor
    """On the host; of type int64."""
    step: int
    epoch: int
    weight: float
    """Its part of all samples of the step."""


@dataclass(frozen=True)
class Pause:
    """A change of workers as this worker saw it, from the end of one step to the start of the next."""

    version: int
    why: str
    workers: int
    hot: bool
    """False: at the start or after a fault, when there was no group to agree in."""
    total_s: float
    build_s: float
    """Making the group; in the background when `hot`, so then not a part of the total."""
    survey_s: float
    hand_over_s: float
    handed_bytes: int


class ElasticTraining:
    """See the module. `with` opens the session and joins; iterate once."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        samples: int,
        global_batch: int | None = None,
        worker_batch: int | None = None,
        lr_rule: str = "linear",
        reference_workers: int = 1,
        epochs: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        micro_batch: int | None = None,
        scheduler: Any = None,
        scheduler_every: str = "step",
        extra: Stateful | None = None,
        before_update: Callable[[], object] | None = None,
        reseed: bool = True,
        save_every_steps: int | None = None,
        save_every_s: float | None = 60.0,
        keep: int = 3,
        location: Location | str | None = None,
        collective_timeout_s: float = 60.0,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._rule = BatchRule(global_batch, worker_batch, lr_rule, reference_workers)
        if epochs is None and steps is None:
            raise MisuseError("elastic() needs epochs=... or steps=...: when is the training done?")
        if samples < 1:
            raise MisuseError(f"samples={samples}: the data set is empty")
        if scheduler_every not in ("step", "epoch"):
            raise MisuseError(f"scheduler_every={scheduler_every!r}; expected 'step' or 'epoch'")
        self._epochs, self._steps = epochs, steps
        self._shuffle, self._drop_last, self._micro_batch = shuffle, drop_last, micro_batch
        self._scheduler_every = scheduler_every
        self._before_update, self._reseed = before_update, reseed
        self._save_every_steps, self._save_every_s = save_every_steps, save_every_s
        self._replica = Replica(model, optimizer, scheduler, extra, samples, seed)
        self._buffers = [buffer for buffer in model.buffers() if buffer is not None]
        self._buffers_before = [buffer.clone() for buffer in self._buffers]
        self._buckets = Buckets(model.parameters(), CARRIED + 1, bucket_bytes)
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self.session = Session(location=location, keep=keep, elastic=True, on_membership=self._hear)
        self._membership = GroupMembership(self.session, device, collective_timeout_s)
        self._due: Batch | None = None
        self._last_part = False
        self._step_size = 0
        self._loss_part = 0.0
        self._fault = ""
        self._sums: list[float] | None = None
        self._saved_s = 0.0
        self._stopped_at_s = time.perf_counter()
        self.loss: float | None = None
        """Mean over the samples of the last applied step, of all workers."""
        self.pauses: list[Pause] = []

    # -- what the script may ask ------------------------------------------------------------------

    @property
    def rank(self) -> int:
        return self._group.rank

    @property
    def workers(self) -> int:
        return self._group.world

    @property
    def is_senior(self) -> bool:
        """One worker has this at any time: let it write logs and files."""
        return self.rank == 0

    @property
    def step_count(self) -> int:
        """Updates applied since the job began."""
        return max(self._replica.step, 0)

    @property
    def epoch(self) -> int:
        return self._replica.position.epoch

    @property
    def _group(self) -> Group:
        if self._membership.group is None:
            raise MisuseError("the training is not open; use `with runtime.elastic(...) as training:`")
        return self._membership.group

    # -- life -------------------------------------------------------------------------------------

    def __enter__(self) -> ElasticTraining:
        self.session.open()
        self._saved_s = time.monotonic()
        try:
            self._come_together()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._buckets.detach()
        self._buckets.abandon()
        self._membership.close()
        self.session.close()

    # -- the loop ---------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        while True:
            if not self._finished():
                yield from self._one_step()
            elif self._part_as_friends():
                return

    def step(self, loss: torch.Tensor) -> None:
        """Last statement of the loop's body: `loss` is the mean over the batch."""
        due, self._due = self._due, None
        if due is None:
            raise MisuseError("step(loss) is called once for every batch, inside the loop over the training")
        loss = loss * due.weight
        self._loss_part += float(loss.detach())
        if self._last_part:
            self._buckets.expect_last(self._carry)
        loss.backward()
        if self._last_part:
            self._complete()

    def _one_step(self) -> Iterator[Batch]:
        replica, group = self._replica, self._group
        self.session.begin_step()
        size = self._rule.global_batch(group.world)
        stop = sampler.usable(replica.samples, size, self._drop_last)
        order = sampler.epoch_order(replica.samples, replica.seed, replica.position.epoch, self._shuffle)
        mine = sampler.share(order, replica.position.consumed, size, stop, group.world, group.rank)
        self._step_size = len(sampler.batch_of(order, replica.position.consumed, size, stop))
        if self._step_size == 0:  # a larger batch than before leaves too little for one more: the epoch is over
            if replica.position.consumed == 0:
                raise MisuseError(f"drop_last leaves nothing of {replica.samples} samples in batches of {size}")
            replica.position = sampler.Position(replica.position.epoch + 1, 0)
            return
        for buffer, before in zip(self._buffers, self._buffers_before, strict=True):
            before.copy_(buffer)
        self._fault, self._sums, self._loss_part = "", None, 0.0
        self._buckets.begin(group)
        part_size = self._micro_batch or max(len(mine), 1)
        parts = [mine[begin : begin + part_size] for begin in range(0, len(mine), part_size)]
        if not parts:  # more workers than samples: take part in the sum with nothing
            self._buckets.expect_last(self._carry)
            self._complete()
        for number, part in enumerate(parts):
            self._last_part = number == len(parts) - 1
            batch = Batch(
                torch.from_numpy(part.copy()), replica.step, replica.position.epoch, len(part) / self._step_size
            )
            self._due = batch
            yield batch
            if self._due is not None:
                raise MisuseError("a batch was taken but training.step(loss) was not called for it")
        self._between_steps()

    def _complete(self) -> None:
        """All gradients of this worker are there: sum them, and update. A fault is dealt with between steps."""
        try:
            self._sums = self._buckets.finish()
        except GroupFault as fault:
            self._fault = str(fault)
            return
        self._update()
        self.loss = self._sums[0]

    def _update(self) -> None:
        replica = self._replica
        if self._before_update is not None:
            self._before_update()
        self.session.check_lease()
        factor = self._rule.lr_factor(self._group.world)
        groups = replica.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        if factor != 1.0:
            for group in groups:
                group["lr"] = group["lr"] * factor
        replica.optimizer.step()
        if factor != 1.0:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate
        size = self._rule.global_batch(self._group.world)
        stop = sampler.usable(replica.samples, size, self._drop_last)
        epoch = replica.position.epoch
        replica.position = sampler.after(replica.position, self._step_size, stop)
        if replica.scheduler is not None and (self._scheduler_every == "step" or replica.position.epoch > epoch):
            replica.scheduler.step()
        replica.step += 1
        replica.work += self._rule.work(self._step_size)

    def _between_steps(self) -> None:
        if self._sums is None:
            self._recover()
            return
        self.session.report(loss=self._sums[0])
        self.session.end_step(self._replica.work)
        sums = self._sums[1:]
        if self._finished():
            return  # the last step: saved and ended in good order, even if a stop was asked for
        stopping = self._membership.stop_agreed(sums)
        if self.is_senior and (stopping or self._save_due()):
            self._save()
        if stopping:
            self._leave(EXIT_STOPPED)
        self._stopped_at_s = time.perf_counter()
        preparation = self._membership.switch_agreed(sums)
        if preparation is not None and not self._switch(preparation):
            self._recover()

    def _switch(self, preparation: Preparation) -> bool:
        """False when the new group broke at once."""
        try:
            group = self._membership.go_over(preparation)
        except Departure:
            self._leave(0)
        return self._meet(group, preparation.membership.why, True, preparation.took_s)

    # -- coming together --------------------------------------------------------------------------

    def _hear(self, membership: Any) -> None:
        self._membership.on_membership(membership)

    def _carry(self) -> list[float]:
        return [self._loss_part, *self._membership.carry()]

    def _recover(self) -> None:
        """The step is discarded here; whether a peer has applied it shows when the survivors meet."""
        self._stopped_at_s = time.perf_counter()
        self._buckets.abandon()
        for buffer, before in zip(self._buffers, self._buffers_before, strict=True):
            buffer.data.copy_(before)
        self._membership.broken(self._group)
        self._come_together()

    def _come_together(self) -> None:
        while True:
            try:
                began_s = time.perf_counter()
                group = self._membership.come_together()
            except Departure:
                self._leave(0)
            except StopAsked:
                if self._replica.step > 0:
                    self._save()
                self._leave(EXIT_STOPPED)
            if self._meet(group, "together", False, time.perf_counter() - began_s):
                return
            del group
            self._membership.broken(self._group)

    def _meet(self, group: Group, why: str, hot: bool, build_s: float) -> bool:
        """In a new group: all take over the state of the one that has come farthest. False when a peer is gone."""
        try:
            self._equalise(group, why, hot, build_s)
            return True
        except GroupFault as fault:
            self._fault = str(fault)
            return False

    def _equalise(self, group: Group, why: str, hot: bool, build_s: float) -> None:
        replica = self._replica
        began_s = time.perf_counter()
        steps = survey(group, replica.step)
        if max(steps) < 0:
            if group.rank == 0:
                self._restore_or_begin()
            source = 0
        else:
            source = steps.index(max(steps))
        surveyed_s = time.perf_counter()
        handed = 0
        if min(steps) < max(steps) or (max(steps) < 0 and group.world > 1):
            handed = hand_over(group, replica, source, behind=steps[group.rank] < max(max(steps), 0))
        handed_s = time.perf_counter()
        self._membership.settled()
        self.session.reporting = group.rank == 0
        self.session.work_done = replica.work
        self.session.changed_size()
        if self._reseed:
            torch.manual_seed((replica.seed * 1_000_003 + replica.step * 10_007 + group.rank) % (1 << 63))
        if self.session.link is not None:
            self.session.link.joined(group.version)
        self.session.report()
        self.pauses.append(
            Pause(
                group.version,
                why,
                group.world,
                hot,
                time.perf_counter() - self._stopped_at_s,
                build_s,
                surveyed_s - began_s,
                handed_s - surveyed_s,
                handed,
            )
        )

    def _restore_or_begin(self) -> None:
        state = self.session.restore()
        if state is None:
            self._replica.step = 0
            return
        if not isinstance(state, dict):
            raise IncompatibleState(f"{self.session.checkpoints.location} holds checkpoints of another kind of script")
        self._replica.adopt(state, f"the checkpoint in {self.session.checkpoints.location}")

    # -- saving and ending ------------------------------------------------------------------------

    def _finished(self) -> bool:
        if self._epochs is not None and self._replica.position.epoch >= self._epochs:
            return True
        return self._steps is not None and self._replica.work >= self._steps

    def _save_due(self) -> bool:
        every = self._save_every_steps
        if every is not None and self._replica.step % every == 0:
            return True
        return self._save_every_s is not None and time.monotonic() - self._saved_s >= self._save_every_s

    def _save(self) -> None:
        if self.session.saved != self._replica.work:
            self.session.save(self._replica.capture())
        self._saved_s = time.monotonic()

    def _part_as_friends(self) -> bool:
        """The senior saves, and nobody leaves before that; False when a death calls for another round."""
        try:
            if self.is_senior:
                self._save()
            self._group.sum(torch.zeros(1, device=self._group.device))
            self.session.finish()
            return True
        except GroupFault as fault:
            self._fault = str(fault)
        self._recover()
        return False

    def _leave(self, code: int) -> NoReturn:
        self.close()
        raise SystemExit(code)


def elastic(model: torch.nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> ElasticTraining:
    """See `ElasticTraining`."""
    return ElasticTraining(model, optimizer, **options)
