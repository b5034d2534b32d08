"""The world as a PettingZoo environment of two agents that cooperate (parallel API).

    from trainmaster.learn.das.environment import DualAgentEnv
    env = DualAgentEnv(site="small")
    observations, infos = env.reset(seed=1)
    env.step({"ordering": scores, "placement": affinities})

A step is one moment at which something could start: `ordering` gives each of the first `window` pending jobs a score,
`placement` gives each of them an affinity to every machine. Down the scores, a job that fits is started where it has
most affinity; the first that does not is held for (`trainmaster.policies.das.backfill_reservation`). Both agents get
the same reward: minus the hours that jobs spend in the system until the next step, or r_t of the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from pettingzoo import ParallelEnv

from trainmaster.learn.das.jobs import JobPool, draw_stream, seeds_of, synthetic_pool
from trainmaster.learn.das.play import filled, scene_of
from trainmaster.learn.das.world import GPUS_ASKED, JOBS, SITES, World
from trainmaster.model.errors import InputError
from trainmaster.policies.das.backfill_reservation import Hold, hold_for
from trainmaster.policies.das.features import (
    N_JOB,
    N_MACHINE,
    job_features,
    machine_features,
    machines_for,
    rooms,
)

ORDERING, PLACEMENT = "ordering", "placement"
BOUND = 50.0
"""No feature is larger than this; scores and affinities need not be either."""


class DualAgentEnv(ParallelEnv[str, Any, Any]):
    """`site`: small, medium or large; `pools`: where jobs come from (default: made up); `part` of them: train..."""

    metadata = {"name": "trainmaster_das_v0", "render_modes": []}  # noqa: RUF012  (the API wants an attribute)

    def __init__(
        self,
        site: str = "small",
        pools: Sequence[JobPool] | None = None,
        part: str = "train",
        jobs: int = JOBS,
        window: int = 64,
        reward: str = "completion",
        wait_weight: float = 0.002,
    ) -> None:
        if site not in SITES:
            raise InputError(f"unknown site '{site}'", "one of " + ", ".join(SITES))
        if reward not in ("completion", "paper"):
            raise InputError(f"reward '{reward}'", "completion or paper")
        self.site, self.pools, self.part, self.jobs = SITES[site], pools or [synthetic_pool()], part, jobs
        self.window, self.reward, self.wait_weight = window, reward, wait_weight
        self.possible_agents = [ORDERING, PLACEMENT]
        self.agents: list[str] = []
        self.render_mode = None
        self._seed, self._episode = 0, -1
        m = len(self.site.machines)

        def box(*shape: int) -> spaces.Box:
            return spaces.Box(-BOUND, BOUND, shape, np.float32)

        seen = {"jobs": box(window, N_JOB), "machines": box(m, N_MACHINE), "mask": spaces.MultiBinary(window)}
        self.observation_spaces = {agent: spaces.Dict(seen) for agent in self.possible_agents}
        self.action_spaces = {ORDERING: box(window), PLACEMENT: box(window, m)}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """`seed` begins a series of episodes, each on another stream; `options={"stream": n}` names the stream."""
        if seed is not None:
            self._seed, self._episode = seed, -1
        self._episode += 1
        number = (options or {}).get("stream", self._seed * 1000 + self._episode)
        stream = draw_stream(self.pools, self.part, seeds_of(self.part, 1, number)[0], self.jobs, GPUS_ASKED)
        self.world = World(self.site, stream)
        self.world.to_decision()
        self.agents = list(self.possible_agents)
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, npt.NDArray[Any]]) -> tuple[dict[str, Any], ...]:  # type: ignore[override]
        if not self.agents:
            return {}, {}, {}, {}, {}
        world = self.world
        scene, pending = scene_of(world), world.pending()[: self.window]
        hold: Hold | None = None
        scores = np.nan_to_num(np.asarray(actions[ORDERING], np.float64))[: len(pending)]
        affinity = np.nan_to_num(np.asarray(actions[PLACEMENT], np.float64))
        paid, started = 0.0, 0
        for row in np.argsort(-scores, kind="stable").tolist():
            room, need = rooms(scene, row), int(scene.need[row])
            if hold is not None:
                room[hold.bars(scene, row)] = 0
            found = machines_for(room, need, scene.type_of, affinity[row], bool(scene.whole_only[row]))
            if found is None:
                hold = hold or hold_for(scene, row)
                continue
            job, taken = int(pending[row]), filled(world.free, np.sort(found[1]), need)
            world.start(job, taken)
            scene.free[:] = world.free
            scene.note_start(row, taken)
            if hold is not None:
                hold.note_start(scene, row, taken)
            paid += self._gain(job)
            started += 1
        reward = self._wait(paid, len(pending) - started)
        over = world.over
        everyone = self.agents
        if over:
            self.agents = []
        return (
            self._observations(everyone),
            dict.fromkeys(everyone, reward),
            dict.fromkeys(everyone, over),
            dict.fromkeys(everyone, False),
            {agent: {"started": started} for agent in everyone},
        )

    def _gain(self, job: int) -> float:
        """1 / (fee jct) as it looks at the start, in units of a job of 50 dollars and two hours."""
        world = self.world
        hours = world.stream.work_s[job] / world.rate[job] / 3600.0
        waited = (world.now_s - world.stream.submit_s[job]) / 3600.0
        fee = float(world.price[world.held_type[job]]) * float(world.stream.gpus[job]) * hours
        return 100.0 / (fee * (waited + hours))

    def _wait(self, paid: float, left: int) -> float:
        """Go on to the next decision; the reward for what lies between."""
        world = self.world
        pending = world.pending()
        waited = (world.now_s - world.stream.submit_s[pending]) / 3600.0 * world.stream.gpus[pending]
        spent, decision = 0.0, False
        while not decision and not world.over:
            before, present = world.now_s, int((world.state <= 1).sum())
            world.advance()
            spent += present * (world.now_s - before) / 3600.0
            decision = bool(len(world.startable()))
        if self.reward == "completion":
            return -spent
        return (paid - self.wait_weight * float(waited.sum())) / max(left + 1, 1)

    def _observations(self, agents: Sequence[str] | None = None) -> dict[str, Any]:
        scene = scene_of(self.world)
        n = min(len(scene.need), self.window)
        jobs = np.zeros((self.window, N_JOB), np.float32)
        jobs[:n] = job_features(scene)[:n]
        mask = np.zeros(self.window, np.int8)
        mask[:n] = 1
        seen = {
            "jobs": np.clip(jobs, -BOUND, BOUND),
            "mask": mask,
            "machines": np.clip(machine_features(scene), -BOUND, BOUND).astype(np.float32),
        }
        return {agent: {key: value.copy() for key, value in seen.items()} for agent in agents or self.agents}

    def render(self) -> None:
        return None

    def close(self) -> None:
        return None
