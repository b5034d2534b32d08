"""DL2's training, from beginning to end: learn from the teacher, then from one's own episodes.

    1. warm up     cross-entropy to the teacher's decisions (supervised)
    2. play        episodes of the present network on fresh traces, several clusters if given
    3. judge       advantage of each slot, from the critic
    4. improve     actor and critic
    5. validate    greedy episodes on held-out traces; the best weights so far are kept
    6. repeat from 2

Everything is drawn from the seed of the options; a run that was interrupted resumes to the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainmaster.core.arrays import Floats
from trainmaster.learn.dl2.demonstrations import (
    RULE,
    Demonstrations,
    GainRule,
    Teacher,
    best_rule,
    both,
    corrections,
    demonstrations,
    record,
)
from trainmaster.learn.dl2.evolution import Ascent, evolve
from trainmaster.learn.dl2.options import TrainOptions
from trainmaster.learn.dl2.recorded_decisions import Lived
from trainmaster.learn.dl2.rollout import Samples, Scorer, Slots, advantages, collect, joined, play, take
from trainmaster.learn.dl2.torch_networks import Critic, SharedActor, WindowActor, log_softmax, owners
from trainmaster.learn.seeds import DEMONSTRATION_SEEDS, TRAIN_SEEDS, VALIDATION_SEEDS
from trainmaster.learn.sizing.trace import SizingSpec, SizingTrace, draw_traces
from trainmaster.learn.training_run import Row, TrainingRun
from trainmaster.policies.dl2.network import ScoringNetwork, WindowNetwork
from trainmaster.policies.dl2.weights import to_bytes

PART = 4
"""Episodes that one process plays before it reports."""
STOP_WEIGHT = 5.0
"""Of the demonstrations in which the teacher stops: one of dozens in a slot, and if it is missed the slot is spoilt."""
VALUE_SCALE = 20.0
"""Returns are divided by this, so that the critic's outputs are of the order of one."""

Collector = Callable[[Sequence[SizingTrace], Scorer, Sequence[int], TrainOptions], tuple[Samples, Slots, Floats]]


@dataclass
class Trainer(TrainingRun):
    """A run. `clusters` are the environments that feed the one learner (the paper's federated variant)."""

    policy, unit, sources = "dl2", "s", ("clusters", "--cluster")
    networks = ("actor", "critic", "actor_optimiser", "critic_optimiser")
    columns = (
        "iteration",
        "completion_s",
        "validation_s",
        "teacher_s",
        "entropy",
        "value_error",
        "decisions",
        "lessons",
        "loss",
    )

    options: TrainOptions
    clusters: Sequence[SizingSpec] = (SizingSpec(),)
    collector: Collector | None = None
    recorded: Lived | None = None
    """What a service decided, to imitate instead of a teacher that decides anew."""

    def __post_init__(self) -> None:
        torch.manual_seed(self.options.seed)
        o = self.options
        self.actor = SharedActor(o.hidden, o.context) if o.network == "shared" else WindowActor(o.hidden, o.window)
        self.critic = Critic(32)
        self.actor_optimiser = torch.optim.Adam(self.actor.parameters(), lr=o.rate)
        self.critic_optimiser = torch.optim.Adam(self.critic.parameters(), lr=1e-3)
        self.memory: list[tuple[Samples, Slots, Floats]] = []
        self.ascent = Ascent()
        self._validation: list[SizingTrace] = []

    # -- the run -----------------------------------------------------------------------------------------

    def start_from(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """These weights instead of those that the actor has."""
        with torch.no_grad():
            for name, value in self.actor.named_parameters():
                value.copy_(torch.from_numpy(np.array(weights[name])))

    def scorer(self) -> Scorer:
        return scorer_of(self.options, self.actor.export())

    def validate(self) -> Row:
        """Mean completion time on held-out traces of all clusters."""
        if not self._validation:
            for k, cluster in enumerate(self.clusters):
                first = VALIDATION_SEEDS + 1000 * k
                few = -(-self.options.validation_traces // len(self.clusters))
                self._validation += draw_traces(cluster, range(first, first + few))
        mean_s = float(play(self._validation, self.scorer(), self.options.floor).mean())
        if mean_s < self.best_score:
            self.best_score, self.best = mean_s, self.actor.export()
        return {"validation_s": mean_s}

    # -- supervised --------------------------------------------------------------------------------------

    def warm_up(self, taught: Demonstrations | None = None) -> Row:
        """Imitate the teacher: minimise the cross-entropy between its choices and the network's."""
        o = self.options
        if not o.warm_up:
            return {}
        rng = np.random.Generator(np.random.PCG64([o.seed, 1]))
        teacher_s = float("nan")
        traces: list[SizingTrace] = []
        teachers: list[Teacher] = []
        if taught is None and self.recorded is not None:
            taught = demonstrations([self.recorded.trace], [self.recorded.sizes], o.kept, rng)
        elif taught is None:
            traces, teachers = self._taught_traces()
            runs = [record(trace, teacher) for trace, teacher in zip(traces, teachers, strict=True)]
            teacher_s = float(np.mean([mean_s for _, mean_s in runs]))
            taught = demonstrations(traces, [sizes for sizes, _ in runs], o.kept, rng, teachers)
        loss = self._imitate(taught, rng)
        rules = [teacher for teacher in teachers if isinstance(teacher, GainRule)]
        for turn in range(o.warm_up_rounds if rules else 0):
            played = [collect_part([trace], self.scorer(), [o.seed, 6, turn, k], o) for k, trace in enumerate(traces)]
            by_decision = [rule for rule, (own, _, _) in zip(rules, played, strict=True) for _ in range(len(own))]
            taught = both(taught, corrections(joined(played)[0], by_decision))
            loss = self._imitate(taught, rng)
        return {"teacher_s": teacher_s, "lessons": float(len(taught.samples)), "loss": loss}

    def _taught_traces(self) -> tuple[list[SizingTrace], list[Teacher]]:
        """Traces of all clusters, each with its teacher."""
        o = self.options
        traces: list[SizingTrace] = []
        teachers: list[Teacher] = []
        per_cluster = max(1, o.warm_up_traces // len(self.clusters))
        for k, cluster in enumerate(self.clusters):
            first = DEMONSTRATION_SEEDS + 1000 * k
            here = draw_traces(cluster, range(first, first + per_cluster))
            teacher = best_rule(here) if o.teacher == RULE else o.teacher
            traces += here
            teachers += [teacher] * len(here)
        return traces, teachers

    def _imitate(self, taught: Demonstrations, rng: np.random.Generator) -> float:
        """Steps down the cross-entropy, ever smaller ones; returns the last."""
        o = self.options
        optimiser = torch.optim.Adam(self.actor.parameters(), lr=o.warm_up_rate)
        decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, o.warm_up_steps, o.warm_up_rate / 20)
        loss = torch.zeros(())
        for _ in range(o.warm_up_steps):
            picked = rng.integers(0, len(taught.samples), size=256)
            part, rows = take(taught.samples, picked)
            scores, void, owner = self._scores(part)
            log_p, log_void = log_softmax(scores, void, torch.from_numpy(part.allowed), owner)
            wanted, wanted_void = torch.from_numpy(taught.wanted[rows]), torch.from_numpy(taught.wanted_void[picked])
            stopped = STOP_WEIGHT * (wanted_void * log_void.clamp(min=-50.0)).sum()
            loss = -((wanted * log_p.clamp(min=-50.0)).sum() + stopped) / len(picked)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            decay.step()
        return float(loss.detach())

    # -- reinforcement -----------------------------------------------------------------------------------

    def improve(self) -> Row:
        """One iteration: play, judge, improve."""
        o = self.options
        self.iteration += 1
        traces = []
        for k in range(o.episodes):
            drawn = (self.iteration * o.episodes + k) % 100_000 + 100_000 * (o.seed % 1000)
            traces += draw_traces(self.clusters[k % len(self.clusters)], [TRAIN_SEEDS + drawn])
        if o.update == "evolution":
            return self._evolved(traces)
        collector = self.collector or collect_here
        samples, slots, mean_s = collector(traces, self.scorer(), [o.seed, 2, self.iteration], o)
        value = self._values(slots) if o.critic else np.zeros(len(slots))
        advantage, target = advantages(slot_reward(slots, o), value, slots.last, o.discount, o.trace_decay)
        if o.critic:
            self._fit_critic(slots, target)
        if o.update == "clipped":
            entropy = self._clipped(samples, _standard(self._per_action(samples, advantage)))
        else:
            entropy = self._replayed(samples, slots, target)
        return {
            "iteration": float(self.iteration),
            "completion_s": float(mean_s.mean()),
            "entropy": entropy,
            "value_error": float(np.mean((target - value) ** 2)),
            "decisions": float(len(samples)),
        }

    def _clipped(self, samples: Samples, judged: Floats) -> float:
        """PPO (Schulman et al., 2017): several passes, the ratio of probabilities clipped."""
        o = self.options
        rng = np.random.Generator(np.random.PCG64([o.seed, 3, self.iteration]))
        entropies = []
        for _ in range(o.passes):
            order = rng.permutation(len(samples))
            for first in range(0, len(order), o.batch):
                picked = order[first : first + o.batch]
                part, _ = take(samples, picked)
                log_p, entropy = self._log_p(part)
                ratio = torch.exp(log_p - torch.from_numpy(part.log_p).float())
                gain = torch.from_numpy(judged[picked]).float()
                clipped = torch.clamp(ratio, 1.0 - o.clip, 1.0 + o.clip)
                self._step(-torch.minimum(ratio * gain, clipped * gain).mean() - o.entropy * entropy.mean())
                entropies.append(float(entropy.mean().detach()))
        return float(np.mean(entropies))

    def _replayed(self, samples: Samples, slots: Slots, target: Floats) -> float:
        """The paper's update: batches drawn from the last `replay` decisions, plain policy gradient. What was decided
        long ago is judged by the critic of today: its return against what the slot is now thought to be worth."""
        o = self.options
        self.memory.append((samples, slots, target))
        while len(self.memory) > 1 and (o.replay == 0 or sum(len(s) for s, _, _ in self.memory[1:]) >= o.replay):
            self.memory.pop(0)
        own = [
            self._per_action(kept, returns - (self._values(seen) if o.critic else 0.0))
            for kept, seen, returns in self.memory
        ]
        source = joined([(kept, seen, returns) for kept, seen, returns in self.memory])[0]
        judged = _standard(np.concatenate(own))
        rng = np.random.Generator(np.random.PCG64([o.seed, 4, self.iteration]))
        entropies = []
        for _ in range(max(1, o.passes * len(samples) // o.batch)):
            picked = rng.integers(0, len(source), size=o.batch)
            part, _ = take(source, picked)
            log_p, entropy = self._log_p(part)
            gain = torch.from_numpy(judged[picked]).float()
            self._step(-(log_p.clamp(min=-20.0) * gain).mean() - o.entropy * entropy.mean())
            entropies.append(float(entropy.mean().detach()))
        return float(np.mean(entropies))

    def _per_action(self, samples: Samples, advantage: Floats) -> Floats:
        """Every action of a slot has the slot's advantage; with `per-job` its own job's progress instead."""
        judged = advantage[samples.slot]
        return judged + samples.own_progress if self.options.reward == "per-job" else judged

    def _evolved(self, traces: Sequence[SizingTrace]) -> Row:
        """Perturb, play, follow the slope; see `evolution`."""
        o = self.options
        rng = np.random.Generator(np.random.PCG64([o.seed, 5, self.iteration]))
        weights, mean_s = evolve(
            self.actor.export(), traces, self.ascent, rng, pairs=o.pairs, width=o.width, rate=o.rate, floor=o.floor
        )
        self.start_from(weights)
        return {"iteration": float(self.iteration), "completion_s": mean_s}

    def _step(self, loss: Tensor) -> None:
        self.actor_optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.actor.parameters(), 0.5)
        self.actor_optimiser.step()

    def _scores(self, part: Samples) -> tuple[Tensor, Tensor, Tensor]:
        owner, counts = owners(part.starts, len(part.rows))
        scores, void = self.actor(torch.from_numpy(part.rows), owner, counts, torch.from_numpy(part.globals_))
        return scores, void, owner

    def _log_p(self, part: Samples) -> tuple[Tensor, Tensor]:
        """Log-probability of the chosen actions, and the entropy of each decision."""
        scores, void, owner = self._scores(part)
        log_all, log_void = log_softmax(scores, void, torch.from_numpy(part.allowed), owner)
        stopped = torch.from_numpy(part.chosen_row < 0)
        row = torch.from_numpy(np.where(part.chosen_row < 0, 0, part.chosen_row) + part.starts)
        action = torch.from_numpy(np.where(part.action < 0, 0, part.action))
        log_p = torch.where(stopped, log_void, log_all[row, action])
        spread = (torch.exp(log_all) * log_all.clamp(min=-50.0)).sum(dim=1)
        entropy = -(torch.exp(log_void) * log_void).index_add(0, owner, spread)
        return log_p, entropy

    def _values(self, slots: Slots) -> Floats:
        with torch.no_grad():
            owner, counts = owners(slots.starts, len(slots.rows))
            value = self.critic(torch.from_numpy(slots.rows), owner, counts, torch.from_numpy(slots.globals_))
        return value.numpy().astype(np.float64)

    def _fit_critic(self, slots: Slots, target: Floats) -> None:
        owner, counts = owners(slots.starts, len(slots.rows))
        rows, globals_ = torch.from_numpy(slots.rows), torch.from_numpy(slots.globals_)
        wanted = torch.from_numpy(target).float()
        for _ in range(12):
            error = torch.nn.functional.smooth_l1_loss(self.critic(rows, owner, counts, globals_), wanted)
            self.critic_optimiser.zero_grad()
            error.backward()
            self.critic_optimiser.step()

    # -- keeping -----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return super().state() | {
            "ascent_steps": self.ascent.steps,
            "ascent": [torch.from_numpy(m) for m in (self.ascent.first, self.ascent.second) if m is not None],
            "memory": [(_tensors(kept), _tensors(seen), torch.from_numpy(back)) for kept, seen, back in self.memory],
        }

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        moments = [m.numpy() for m in state["ascent"]]
        self.ascent = Ascent(*moments, steps=state["ascent_steps"]) if moments else Ascent()
        self.memory = [
            (Samples(**_arrays(kept)), Slots(**_arrays(seen)), back.numpy())
            for kept, seen, back in state.get("memory", [])
        ]

    def described_sources(self) -> list[dict[str, str]]:
        """All that traces are drawn from."""
        return [{part.name: repr(getattr(spec, part.name)) for part in fields(spec)} for spec in self.clusters]

    def check_sources(self, state: Mapping[str, Any], folder: Path) -> None:
        if self.recorded is None:  # a service's history has gone on meanwhile
            super().check_sources(state, folder)

    def weights_file(self, made_by: Mapping[str, Any]) -> bytes:
        o = self.options
        return to_bytes(self.best, o.network, o.window if o.network == "window" else 0, made_by)


def _tensors(columns: Samples | Slots) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in vars(columns).items()}


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: value.numpy() for name, value in tensors.items()}


def collect_part(
    traces: Sequence[SizingTrace], scorer: Scorer, seed: Sequence[int], options: TrainOptions
) -> tuple[Samples, Slots, Floats]:
    """Episodes on a few traces, from a seed of their own."""
    rng = np.random.Generator(np.random.PCG64(list(seed)))
    return collect(traces, scorer, rng, options.kept, options.exploration, options.floor)


def parts(traces: Sequence[SizingTrace], seed: Sequence[int]) -> list[tuple[Sequence[SizingTrace], list[int]]]:
    """Traces in parts of a fixed size, each with its seed, so that the number of processes changes nothing."""
    return [(traces[k : k + PART], [*seed, k]) for k in range(0, len(traces), PART)]


def collect_here(
    traces: Sequence[SizingTrace], scorer: Scorer, seed: Sequence[int], options: TrainOptions
) -> tuple[Samples, Slots, Floats]:
    """Episodes in this process."""
    return joined([collect_part(few, scorer, own_seed, options) for few, own_seed in parts(traces, seed)])


def scorer_of(options: TrainOptions, weights: dict[str, npt.NDArray[np.float32]]) -> Scorer:
    return ScoringNetwork(weights) if options.network == "shared" else WindowNetwork(weights, options.window)


def _standard(values: Floats) -> Floats:
    return (values - values.mean()) / (values.std() + 1e-8)


def slot_reward(slots: Slots, options: TrainOptions) -> Floats:
    """Reward of each slot; with `per-job` every action has its own job's progress instead."""
    if options.reward == "completion":
        return -slots.present / VALUE_SCALE
    return slots.progress if options.reward == "progress" else np.zeros(len(slots))
