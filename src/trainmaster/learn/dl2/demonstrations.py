"""Decisions of an existing scheduler as demonstrations: recorded in the real engine, replayed slot by slot.

Any registered policy can teach. What is recorded is the size of every job in every slot; a lesson is a state on
the way to those sizes with the actions that lead there. The name `rule` stands for a rule of our own that is no
policy: the relative gain per share of the cluster, over a power of the remaining time. Which power is chosen by
trying a few on the demonstrations' own traces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from trainmaster.core.arrays import Ints, Singles
from trainmaster.engine.engine import Settings
from trainmaster.learn.dl2.rollout import Samples, play, starts_of, take
from trainmaster.learn.sizing.batch import Decisions, SlotBatch
from trainmaster.learn.sizing.trace import SizingTrace
from trainmaster.model.errors import InputError
from trainmaster.model.job import JobSpec
from trainmaster.model.plan import Plan
from trainmaster.model.policy import Policy, PolicyTraits, traits_of
from trainmaster.model.snapshot import Snapshot
from trainmaster.model.units import MS_PER_S
from trainmaster.policies import registry
from trainmaster.sim.run import simulate
from trainmaster.sim.truth import TruthOptions

RULE = "rule"
Sizes = Mapping[int, Mapping[str, tuple[int, int]]]
"""Slot -> job id -> (workers, servers). Jobs that are absent hold nothing."""


@dataclass
class Recorder:
    """A policy that remembers what the one it wraps decided at each round."""

    policy: Policy
    round_ms: int
    sizes: dict[int, dict[str, tuple[int, int]]] = field(default_factory=dict)

    @property
    def traits(self) -> PolicyTraits:
        return PolicyTraits(own_rounds=traits_of(self.policy).own_rounds)

    def decide(self, view: Snapshot) -> Plan:
        plan = self.policy.decide(view)
        held: dict[str, tuple[int, int]] = {}
        for row in range(len(view.jobs)):
            given = plan.changes.get(row)
            if row not in plan.changes and view.jobs.holds(row):
                given = view.jobs.allocation(row)
            if given is not None:
                held[view.jobs.id(row)] = (given.workers, given.servers)
        self.sizes[view.now_ms // self.round_ms] = held
        return plan


def check_teacher(name: str, specs: Sequence[JobSpec]) -> None:
    """A teacher must exist, and its jobs must leave it something to size."""
    if name != RULE:
        registry.parse(name)
        if name.partition(":")[0] == "dl2":
            raise InputError("dl2 cannot teach itself", "another policy, such as drf, srtf or optimus")
    if not any(spec.elastic for spec in specs):
        raise InputError(
            "no job of the lessons is elastic",
            "jobs whose workers_min is below workers_max",
            "Teach on a trace with elastic jobs (`trainmaster traces generate --elastic 1`).",
        )


@dataclass(frozen=True)
class GainRule:
    """score = ln(gain / cost) - power ln(time left at least) + fill min(0, ln(slots left at this size)).

    `power` 0 goes by gain alone, which is best where jobs soon stop gaining; 3 is close to shortest first, which is
    best where they scale almost linearly. `fill` keeps a job from growing once it ends within the slot. What gains
    less than `LEAST` is not given. `sharpness`: how much likelier a better score is to be told in a lesson."""

    power: float = 0.0
    fill: float = 0.0
    sharpness: float = 6.0

    def scores(self, rows: Singles, starts: Ints, globals_: Singles) -> tuple[Singles, Singles]:
        del globals_
        score = rows[:, 9:12] * 4.0 - self.power * rows[:, 0:1] * 3.0 + self.fill * np.minimum(rows[:, 1:2] * 3.0, 0.0)
        score = np.where(rows[:, 6:9] < LEAST, np.float32(NEVER), score)
        return score.astype(np.float32), np.full(len(starts), NEVER / 10, np.float32)


LEAST, NEVER = 3e-3, -1e6
RULES = (GainRule(0.0, 0.0), GainRule(0.0, 1.0), GainRule(1.0, 0.0), GainRule(3.0, 50.0, 0.5))


def best_rule(traces: Sequence[SizingTrace]) -> GainRule:
    """The rule with the least mean completion time on these traces."""
    return min(RULES, key=lambda rule: float(play(traces, rule).mean()))


Teacher = str | GainRule


def record(trace: SizingTrace, teacher: Teacher) -> tuple[Sizes, float]:
    """Sizes in every slot and mean completion time, when a registered policy schedules the trace in the engine. The
    rule is asked decision by decision, so its sizes need not be known beforehand."""
    specs = trace.job_specs()
    if teacher == RULE:
        teacher = best_rule([trace])
    if isinstance(teacher, GainRule):
        return {}, float(play([trace], teacher)[0])
    check_teacher(teacher, specs)
    round_ms = round(trace.spec.slot_s * MS_PER_S)
    recorder = Recorder(registry.create(teacher), round_ms)
    truth = TruthOptions(noise=trace.spec.speed_variation)
    result = simulate(specs, trace.spec.cluster(), recorder, Settings(round_ms=round_ms), truth)
    mean_s = float(np.mean([end.ended_ms - end.spec.submit_ms for end in result.ended])) / MS_PER_S
    return recorder.sizes, mean_s


@dataclass
class Demonstrations:
    """Decisions, and for each the chance that the teacher gives to every action (`wanted`) and to stopping."""

    samples: Samples
    wanted: npt.NDArray[np.float32]
    wanted_void: npt.NDArray[np.float32]


def demonstrations(
    traces: Sequence[SizingTrace],
    recorded: Sequence[Sizes],
    kept: float,
    rng: np.random.Generator,
    teachers: Sequence[Teacher] = (),
) -> Demonstrations:
    """States on the way to the recorded sizes, which are carried out, so that the next slot is the teacher's.

    A registered policy tells sizes alone, so the order of actions is ours; the rule tells the order too."""
    out: list[tuple[Decisions, Singles, float]] = []
    for k, (trace, sizes) in enumerate(zip(traces, recorded, strict=True)):
        teacher = teachers[k] if teachers else ""
        _teach(trace, sizes, kept, rng, out, teacher if isinstance(teacher, GainRule) else None)
    if not out:
        raise InputError("the recorded decisions hold no lesson", "slots in which jobs are given workers")
    lengths = np.array([len(item[0].rows) for item in out], np.int64)
    n = len(out)
    samples = Samples(
        rows=np.concatenate([item[0].rows for item in out]),
        allowed=np.concatenate([item[0].allowed for item in out]),
        starts=starts_of(lengths),
        globals_=np.concatenate([item[0].globals_ for item in out]),
        chosen_row=np.full(n, -1, np.int64),
        action=np.full(n, -1, np.int64),
        log_p=np.zeros(n),
        slot=np.zeros(n, np.int64),
        own_progress=np.zeros(n),
    )
    wanted = np.concatenate([item[1] for item in out])
    return Demonstrations(samples, wanted, np.array([item[2] for item in out], np.float32))


def both(one: Demonstrations, other: Demonstrations) -> Demonstrations:
    """All demonstrations of the two."""
    behind = {**vars(other.samples), "starts": other.samples.starts + len(one.samples.rows)}
    samples = Samples(**{name: np.concatenate([value, behind[name]]) for name, value in vars(one.samples).items()})
    return Demonstrations(
        samples, np.concatenate([one.wanted, other.wanted]), np.concatenate([one.wanted_void, other.wanted_void])
    )


def _teach(
    trace: SizingTrace,
    sizes: Sizes,
    kept: float,
    rng: np.random.Generator,
    out: list[tuple[Decisions, Singles, float]],
    rule: GainRule | None,
) -> None:
    batch = SlotBatch([trace])
    s = batch.state
    targets: Mapping[str, tuple[int, int]] = {}
    while len(batch.alive):
        decisions = batch.decisions()
        # The engine asks a policy only when something has changed: until then the last sizes hold.
        targets = sizes.get(int(s.slot[0]), targets)
        if rule is not None:
            wanted, stops = _by_rule(rule, decisions.rows, decisions.starts, decisions.allowed)
            lacking = not stops[0]
        else:
            wanted, lacking = _wanted(trace, decisions, s.workers[0], s.servers[0], targets)
        void = 0.0 if lacking else 1.0
        if rng.random() < kept:
            out.append((decisions, wanted, void))
        row, action = -1, -1
        if lacking:
            row, action = divmod(int(np.argmax(wanted)), 3)
        batch.apply(decisions, np.array([row]), np.array([action]))


def corrections(samples: Samples, rules: Sequence[GainRule]) -> Demonstrations:
    """What the rule of each decision would have done in states that the network itself came to (Ross et al.,
    AISTATS'11): only there it sees what its own mistakes lead to."""
    wanted = np.zeros((len(samples.rows), 3), np.float32)
    void = np.zeros(len(samples), np.float32)
    of_rule = {rule: np.array([k for k, other in enumerate(rules) if other == rule]) for rule in rules}
    for rule, picked in of_rule.items():
        part, rows = take(samples, picked)
        wanted[rows], void[picked] = _by_rule(rule, part.rows, part.starts, part.allowed)
    return Demonstrations(samples, wanted, void)


def _by_rule(
    rule: GainRule, rows: Singles, starts: Ints, allowed: npt.NDArray[np.bool_]
) -> tuple[Singles, npt.NDArray[np.float32]]:
    """Chances of actions: the better the score the likelier, so that the network learns by how much one is better than
    another; and where the rule stops."""
    scores, _ = rule.scores(rows, starts, np.zeros((0, 0), np.float32))
    scores = np.where(allowed, scores, np.float32(NEVER))
    counts = np.diff(np.append(starts, len(rows)))
    top = np.maximum.reduceat(scores.max(axis=1), starts)
    stops = top <= NEVER
    chance = np.exp(rule.sharpness * (scores - np.repeat(top, counts)[:, None]))
    chance[scores <= NEVER] = 0.0
    total = np.add.reduceat(chance.sum(axis=1), starts)
    wanted = chance / np.repeat(np.where(stops, 1.0, total), counts)[:, None]
    return wanted.astype(np.float32), stops.astype(np.float32)


def _wanted(
    trace: SizingTrace, decisions: Decisions, workers: Ints, servers: Ints, targets: Mapping[str, tuple[int, int]]
) -> tuple[Singles, bool]:
    """The job that is furthest from its target comes next; those equally far share the chance."""
    wanted = np.zeros((len(decisions.rows), 3), np.float32)
    filled = np.full(len(decisions.rows), np.inf)
    best = np.full(len(decisions.rows), -1, np.int64)
    for i, j in enumerate(decisions.job.tolist()):
        w, p = targets.get(trace.ids[j], (0, 0))
        more_w, more_p = w > workers[j], p > servers[j]
        both_help = more_w and (more_p or trace.spec.servers_max == 0)
        for action, useful in ((2, both_help), (0, more_w), (1, more_p)):
            if useful and decisions.allowed[i, action]:
                best[i] = action
                filled[i] = (workers[j] + servers[j]) / (w + p)
                break
    least = filled.min() if len(filled) else np.inf
    if not np.isfinite(least):
        return wanted, False
    first = np.flatnonzero(filled <= least + 1e-9)
    wanted[first, best[first]] = 1.0 / len(first)
    return wanted, True
