"""DAS's training, from beginning to end: imitate a rule, then improve both agents together by MAPPO.

    1. warm up     cross-entropy to a rule: smallest expected area first, packed, on the machines expected fastest
    2. play        episodes on fresh streams, several on each, both agents sampling
    3. judge       advantages by a central critic that sees both agents' world (and the truth), and how the other
                   episodes on the stream fared: GAE
    4. improve     each agent by its own clipped ratio and entropy, with the shared advantage; then the critic
    5. validate    greedy episodes on streams that are neither trained nor tested on; the best weights are kept
    6. repeat from 2

Ordering is a draw without replacement from the softmax of the scores (Gumbel noise), so that the likelihood of the
order is that of each choice among the jobs that could start. Placement is a draw from N(mu, Sigma) with the covariance
of the Gaussian process. Everything is drawn from the seed; an interrupted run resumes to the same weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainmaster.core.arrays import Floats
from trainmaster.learn.advantage import generalised_advantage
from trainmaster.learn.das.jobs import JobPool, draw_stream, seeds_of
from trainmaster.learn.das.options import DasOptions
from trainmaster.learn.das.play import Choice, Player, Record, noise_covariance
from trainmaster.learn.das.torch_agents import Critic, TorchAgents
from trainmaster.learn.das.world import GPUS_ASKED, JOBS, SITES, Site, World
from trainmaster.learn.das.world_shapes import varied_world
from trainmaster.learn.training_run import Row, TrainingRun
from trainmaster.policies.das.network import Agents
from trainmaster.policies.das.weights import to_bytes

COST_SCALE = 20.0
"""Job-hours that are one unit of reward, so that values are of the order of one."""
PENDING_MAX = 160
"""Choices among more pending jobs than this are not learned from (they would only be padding for all others)."""
TERMS = 40
"""Streams by which iterations are apart in their seeds."""
VARIED_SEEDS = 10_000_000
"""By which the varied worlds of one turn are apart."""


@dataclass
class Episode:
    site: Site
    stream: int
    record: Record
    reward: Floats
    completion_min: float


@dataclass
class Trainer(TrainingRun):
    policy, unit, sources = "das", "min", ("sources", "--trace")
    networks = ("agents", "critic", "agent_optimiser", "critic_optimiser")
    columns = (
        "iteration",
        "completion_min",
        "validation_min",
        "small_min",
        "medium_min",
        "large_min",
        "fee",
        "entropy",
        "value_error",
        "gain",
        "choices",
        "loss",
    )

    options: DasOptions
    pools: Sequence[JobPool]

    def __post_init__(self) -> None:
        o = self.options
        self.agents = TorchAgents(o.width, o.hidden, o.heads, o.variant, o.gain, o.seed)
        self.critic = Critic(o.seed)
        self.agent_optimiser = torch.optim.Adam(self.agents.parameters(), lr=o.rate)
        self.critic_optimiser = torch.optim.Adam(self.critic.parameters(), lr=2e-3)
        self.kernel = o.kernel()
        self._drew = self.frozen()
        """The agents that played the episodes of this iteration; their gain is in the covariance of the samples."""

    def frozen(self) -> Agents:
        return Agents(self.agents.export(), self.options.heads, self.options.variant)

    def validate(self) -> Row:
        """Mean completion time (minutes) over the sites, as the paper's average; keeps the weights if they are best."""
        agents, minutes, dollars = self.frozen(), [], []
        for site in SITES.values():
            for seed in seeds_of("validation", self.options.validation_traces):
                stream = draw_stream(self.pools, "validation", seed, JOBS, GPUS_ASKED)
                world = Player(World(site, stream), agents, self.kernel).play()
                minutes.append(float(world.completion_s().mean()) / 60.0)
                dollars.append(float(world.fee().mean()))
        mean = float(np.mean(minutes))
        if mean < self.best_score:
            self.best_score, self.best = mean, self.agents.export()
        by_site = np.array(minutes).reshape(len(SITES), -1).mean(axis=1)
        named = {f"{name}_min": float(value) for name, value in zip(SITES, by_site, strict=True)}
        return {"validation_min": mean, "fee": float(np.mean(dollars)), **named}

    # -- 1. imitation ----------------------------------------------------------------------------------------

    def warm_up(self) -> Row:
        o = self.options
        rng = np.random.Generator(np.random.PCG64([o.seed, 1]))
        episodes = [self._play(k, True) for k in range(o.warm_up_episodes)]
        choices = [(e.record, c) for e in episodes for c in e.record.choices]
        orders = [item for item in choices if _is_order(item)]
        places = [item for item in choices if len(item[1].pairs) > 1]
        optimiser = torch.optim.Adam(self.agents.parameters(), lr=o.warm_up_rate)
        decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(o.warm_up_steps, 1), o.warm_up_rate / 20)
        order_loss = place_loss = torch.zeros(())
        for _ in range(o.warm_up_steps):
            if orders:
                log_p, chosen, _ = self._order_log_p([orders[i] for i in rng.integers(0, len(orders), 64)])
                order_loss = -log_p.gather(1, chosen[:, None]).mean()
            if places:
                picked = [places[i][1] for i in rng.integers(0, len(places), 64)]
                affinity, real, _ = self._affinities(picked)
                log_place = torch.log_softmax(affinity.masked_fill(~real, -1e9), dim=1)
                wanted = torch.zeros_like(affinity)
                for b, choice in enumerate(picked):
                    wanted[b, : len(choice.taken)] = torch.from_numpy(choice.taken / choice.taken.sum())
                place_loss = -(wanted * log_place).sum(dim=1).mean()
            optimiser.zero_grad()
            (order_loss + place_loss).backward()
            optimiser.step()
            decay.step()
        return {
            "completion_min": float(np.mean([e.completion_min for e in episodes])),
            "loss": float((order_loss + place_loss).detach()),
        }

    # -- 2. episodes -----------------------------------------------------------------------------------------

    def _play(self, number: int, teacher: bool = False) -> Episode:
        """Episode `number` of this iteration: a fresh stream on the site whose turn it is, those of the study first."""
        o = self.options
        turn, place = divmod(number, len(SITES) + o.varied)
        first = (o.seed % 1000) * 100_000 + self.iteration * TERMS + (turn if teacher else turn // o.rollouts)
        seed = seeds_of("train", 1, first)[0]
        if place < len(SITES):
            stream = draw_stream(self.pools, "train", seed, o.jobs, GPUS_ASKED)
            world = World(list(SITES.values())[place], stream)
        else:
            world = varied_world(self.pools, "train", seed + VARIED_SEEDS * (place - len(SITES) + 1), o.jobs)
        rng = np.random.Generator(np.random.PCG64([o.seed, 2, self.iteration, number]))
        player = Player(world, self.frozen(), self.kernel, rng, teacher, o.fee_weight)
        world = player.play()
        reward = _paper_reward(player, o) if o.reward == "paper" else time_reward(player.record, o.horizon_h)
        return Episode(world.site, first, player.record, reward, float(world.completion_s().mean()) / 60.0)

    # -- 3. and 4. ---------------------------------------------------------------------------------------------

    def improve(self) -> Row:
        """One iteration of MAPPO."""
        o = self.options
        self.iteration += 1
        self._drew = self.frozen()
        episodes = [self._play(k) for k in range(o.episodes)]
        states, ahead = judged_against_others(episodes, o.horizon_h)
        advantages, targets = [], []
        for episode, state, others in zip(episodes, states, ahead, strict=True):
            with torch.no_grad():
                value = others + self.critic(torch.from_numpy(state).float()).numpy().astype(np.float64)
            gain = generalised_advantage(
                episode.reward, value, kept_until_next(episode.record, o.horizon_h), o.trace_decay
            )
            advantages.append(gain)
            targets.append(gain + value - others)
        _normalise_by_site(episodes, advantages)
        items = [
            (e.record, c, float(a))
            for e, gains in zip(episodes, advantages, strict=True)
            for c, a in zip(e.record.choices, gains, strict=True)
        ]
        entropy = self._improve_agents(items)
        error = self._fit_critic(np.concatenate(states), np.concatenate(targets))
        return {
            "iteration": float(self.iteration),
            "entropy": entropy,
            "value_error": error,
            "completion_min": float(np.mean([e.completion_min for e in episodes])),
            "gain": float(self.agents.p["gain"].detach()[0]),
            "choices": float(len(items)),
        }

    def _improve_agents(self, items: list[tuple[Record, Choice, float]]) -> float:
        """Clipped surrogate of each agent; the paper's min(ratio, clip) B is wrong where B < 0, hence
        min(ratio B, clip B)."""
        o = self.options
        rng = np.random.Generator(np.random.PCG64([o.seed, 3, self.iteration]))
        orders = [item for item in items if _is_order(item)]
        places = [item for item in items if len(item[1].pairs) > 1]
        entropies = []
        for _ in range(o.passes):
            order_batches = _batches(orders, o, rng)
            place_batches = _batches(places, o, rng)
            for k in range(max(len(order_batches), len(place_batches))):
                loss = torch.zeros(())
                if k < len(order_batches):
                    batch = order_batches[k]
                    log_p, chosen, spread = self._order_log_p(batch)
                    new = log_p.gather(1, chosen[:, None])[:, 0]
                    loss = loss + _clipped(new, [c.log_p_order for _, c, _ in batch], batch, o.clip)
                    loss = loss - o.entropy * spread.mean()
                    entropies.append(float(spread.mean().detach()))
                if k < len(place_batches):
                    batch = place_batches[k]
                    new = self._place_log_p([c for _, c, _ in batch])
                    loss = loss + _clipped(new, [c.log_p_place for _, c, _ in batch], batch, o.clip)
                self.agent_optimiser.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.agents.parameters(), 0.5)
                self.agent_optimiser.step()
        return float(np.mean(entropies)) if entropies else 0.0

    def _order_log_p(self, items: Sequence[tuple[Any, ...]]) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities over the pending jobs (B x N), the ones chosen, and entropies."""
        looks = [(record.jobs[c.looked], record.machines[c.looked]) for record, c, *_ in items]
        n, m = max(len(x) for x, _ in looks), max(len(y) for _, y in looks)
        jobs, machines = (
            np.zeros((len(items), n, looks[0][0].shape[1])),
            np.zeros((len(items), m, looks[0][1].shape[1])),
        )
        real, real_m = np.zeros((len(items), n)), np.zeros((len(items), m))
        could, chosen = np.zeros((len(items), n), np.bool_), np.zeros(len(items), np.int64)
        for b, ((x, y), (_, c, *_)) in enumerate(zip(looks, items, strict=True)):
            jobs[b, : len(x)], machines[b, : len(y)], real[b, : len(x)], real_m[b, : len(y)] = x, y, 1.0, 1.0
            could[b, c.could] = True
            chosen[b] = c.could[c.chosen]
        scores = self.agents.scores(*(torch.from_numpy(a).float() for a in (jobs, machines, real, real_m)))
        allowed = torch.from_numpy(could)
        log_p = torch.log_softmax(scores.masked_fill(~allowed, -1e9), dim=1)
        entropy = -(log_p.exp() * log_p.clamp(min=-50.0)).sum(dim=1)
        return log_p, torch.from_numpy(chosen), entropy

    def _affinities(self, choices: Sequence[Choice]) -> tuple[Tensor, Tensor, int]:
        k = max(len(c.pairs) for c in choices)
        pairs, speed = np.zeros((len(choices), k, choices[0].pairs.shape[1])), np.zeros((len(choices), k))
        real = np.zeros((len(choices), k), np.bool_)
        for b, c in enumerate(choices):
            pairs[b, : len(c.pairs)], speed[b, : len(c.pairs)], real[b, : len(c.pairs)] = c.pairs, c.log_speed, True
        affinity = self.agents.affinities(torch.from_numpy(pairs).float(), torch.from_numpy(speed).float())
        return affinity, torch.from_numpy(real), k

    def _place_log_p(self, choices: Sequence[Choice]) -> Tensor:
        """log N(A; mu, Sigma) up to the constant, with the Sigma under which A was drawn; padding counts nothing."""
        affinity, real, k = self._affinities(choices)
        drawn, inverse = np.zeros((len(choices), k)), np.tile(np.eye(k), (len(choices), 1, 1))
        half_log = np.zeros(len(choices))
        agents = self._drew
        for b, c in enumerate(choices):
            n = len(c.pairs)
            sigma = noise_covariance(c.covariance, agents, n)
            drawn[b, :n], inverse[b, :n, :n] = c.affinity, np.linalg.inv(sigma)
            half_log[b] = 0.5 * np.linalg.slogdet(sigma)[1]
        away = (torch.from_numpy(drawn).float() - affinity) * real
        square = torch.einsum("bi,bij,bj->b", away, torch.from_numpy(inverse).float(), away)
        return -0.5 * square - torch.from_numpy(half_log).float()

    def _fit_critic(self, states: Floats, targets: Floats) -> float:
        x, y = torch.from_numpy(states).float(), torch.from_numpy(targets).float()
        error = torch.zeros(())
        for _ in range(60):
            error = torch.nn.functional.smooth_l1_loss(self.critic(x), y)
            self.critic_optimiser.zero_grad()
            error.backward()
            self.critic_optimiser.step()
        return float(error.detach())

    # -- keeping -----------------------------------------------------------------------------------------------

    def described_sources(self) -> list[dict[str, str]]:
        return [{"name": pool.name, "jobs": str(len(pool))} for pool in self.pools]

    def weights_file(self, made_by: Mapping[str, Any]) -> bytes:
        agents = Agents(self.best, self.options.heads, self.options.variant)
        return to_bytes(agents, self.kernel, {**made_by, "sources": [pool.name for pool in self.pools]})


def kept_until_next(record: Record, horizon_h: float) -> Floats:
    """What the discount leaves from each choice to the next."""
    at_h = np.array([c.at_s for c in record.choices]) / 3600.0
    return np.exp(-np.diff(at_h, append=at_h[-1:]) / horizon_h)


def judged_against_others(episodes: Sequence[Episode], horizon_h: float) -> tuple[list[Floats], list[Floats]]:
    """Of each choice what the critic sees, and the reward that was still to come for the other episodes on the same
    stream at that time (their mean). What comes is decided by the stream far more than by a choice, so that the critic
    has only to tell how the backlog differs from theirs (an input-dependent baseline; Mao et al., 2019)."""
    to_come, backlogs, times = [], [], []
    for e in episodes:
        kept, total = kept_until_next(e.record, horizon_h), 0.0
        ahead = np.zeros(len(e.reward))
        for t in range(len(ahead) - 1, -1, -1):
            total = e.reward[t] + kept[t] * total
            ahead[t] = total
        to_come.append(ahead)
        backlogs.append(np.stack([c.backlog for c in e.record.choices]))
        times.append(np.array([c.at_s for c in e.record.choices]))
    states, expected = [], []
    for k, e in enumerate(episodes):
        others = [i for i, other in enumerate(episodes) if i != k and (other.site, other.stream) == (e.site, e.stream)]
        own = np.stack([c.state for c in e.record.choices])
        theirs, apart = np.zeros(len(own)), np.zeros((len(own), 2))
        if others:
            theirs = np.mean([np.interp(times[k], times[i], to_come[i]) for i in others], axis=0)
            for part in range(2):
                met = [np.interp(times[k], times[i], backlogs[i][:, part]) for i in others]
                apart[:, part] = (backlogs[k][:, part] - np.mean(met, axis=0)) / (10.0, 1.0)[part]
        states.append(np.column_stack([own, apart, theirs]))
        expected.append(theirs)
    return states, expected


def time_reward(record: Record, horizon_h: float) -> Floats:
    """Minus what was charged until the next choice, shaped by a potential: what running jobs are still due at their
    present speeds. A choice is so charged at once for the speed that it gives a job and takes from others; which
    choices are best stays the same (Ng et al., 1999)."""
    cost, due = (np.array([getattr(c, name) for c in record.choices]) for name in ("cost", "due"))
    return -(cost + kept_until_next(record, horizon_h) * np.append(due[1:], 0.0) - due) / COST_SCALE


def _paper_reward(player: Player, o: DasOptions) -> Floats:
    """r_t = 1/N' sum_i [zeta_i / (fee_i jct_i) - (1 - zeta_i) alpha C_i nGPU_i] for the start of one job at a time; the
    first term in units of a job of 50 dollars and two hours."""
    world, stream = player.world, player.world.stream
    fee, hours = world.fee(), world.completion_s() / 3600.0
    reward = np.zeros(len(player.record.choices))
    for t, choice in enumerate(player.record.choices):
        now = choice.at_s
        waits = (stream.submit_s <= now) & (world.start_s > now)
        waited = (now - stream.submit_s[waits]) / 3600.0 * stream.gpus[waits]
        gained = 100.0 / (fee[choice.job] * hours[choice.job]) if choice.job >= 0 else 0.0
        reward[t] = (gained - o.wait_weight * waited.sum()) / (1 + waits.sum())
    return reward


def _is_order(item: Sequence[Any]) -> bool:
    record, choice = item[0], item[1]
    return len(choice.could) > 1 and len(record.jobs[choice.looked]) <= PENDING_MAX


def _batches(
    items: list[tuple[Record, Choice, float]], o: DasOptions, rng: np.random.Generator
) -> list[list[tuple[Record, Choice, float]]]:
    """Some of the items in batches of alike length, so that little is padding; the batches in random order."""
    picked = rng.permutation(len(items))[: o.learned]
    lengths = np.array([len(items[i][0].jobs[items[i][1].looked]) for i in picked])
    picked = picked[np.argsort(lengths, kind="stable")]
    batches = [[items[i] for i in picked[k : k + o.batch]] for k in range(0, len(picked), o.batch)]
    return [batches[i] for i in rng.permutation(len(batches))]


def _clipped(new: Tensor, old: list[float], batch: Sequence[tuple[Record, Choice, float]], clip: float) -> Tensor:
    ratio = torch.exp((new - torch.tensor(old)).clamp(-10.0, 10.0))
    gain = torch.tensor([a for _, _, a in batch])
    return -torch.minimum(ratio * gain, torch.clamp(ratio, 1.0 - clip, 1.0 + clip) * gain).mean()


def _normalise_by_site(episodes: Sequence[Episode], advantages: list[Floats]) -> None:
    """In place: advantages have mean 0 and deviation 1 on each site, or the crowded one would drown the others."""
    for site in dict.fromkeys(e.site for e in episodes):
        own = [k for k, e in enumerate(episodes) if e.site == site]
        together = np.concatenate([advantages[k] for k in own])
        mean, deviation = together.mean(), together.std() + 1e-8
        for k in own:
            advantages[k] = (advantages[k] - mean) / deviation
