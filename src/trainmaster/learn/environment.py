"""Elastic sizing as a Gymnasium environment, `trainmaster/Sizing-v0`: one action is one worker, server or both.

Observation: the features of the first J jobs in the system, in order of arrival, and the global ones (see
`policies.dl2.features`), in one vector. Action 0 ends the slot; 1 + 3 i + a gives job i a worker (a = 0), a server
(1) or both (2). `info["action_mask"]` says what is possible (also `action_masks()`, as MaskablePPO calls it); an
impossible action ends the slot. The reward comes when a slot ends, and is 0 before.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from trainmaster.core.arrays import Singles
from trainmaster.learn.sizing.batch import Decisions, SlotBatch
from trainmaster.learn.sizing.trace import SizingSpec, draw_trace
from trainmaster.model.errors import InputError
from trainmaster.policies.dl2.features import N_GLOBAL, N_JOB

BOUND = 30.0


class SizingEnv(gymnasium.Env[Singles, np.int64]):
    """A trace per episode: that of `reset(options={"trace": seed})`, else one drawn from the environment's seed."""

    metadata = {"render_modes": []}  # noqa: RUF012  (the base class declares it so)

    def __init__(self, spec: SizingSpec | None = None, window: int = 20, reward: str = "completion") -> None:
        if reward not in ("completion", "progress"):
            raise InputError(f"reward '{reward}'", "completion or progress")
        if window < 1:
            raise InputError(f"a window of {window} jobs", "1 or more")
        self.spec_of_traces = spec or SizingSpec()
        self.window = window
        self.reward = reward
        size = window * N_JOB + N_GLOBAL
        self.observation_space = spaces.Box(-BOUND, BOUND, (size,), np.float32)
        self.action_space = spaces.Discrete(1 + 3 * window)
        self._batch: SlotBatch | None = None
        self._now: Decisions | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Singles, dict[str, Any]]:
        super().reset(seed=seed)
        trace_seed = (options or {}).get("trace")
        if trace_seed is None:
            trace_seed = int(self.np_random.integers(0, 2**31))
        self._batch = SlotBatch([draw_trace(self.spec_of_traces, int(trace_seed))])
        return self._observe()

    def step(self, action: np.int64) -> tuple[Singles, float, bool, bool, dict[str, Any]]:
        batch, now = self._batch, self._now
        assert batch is not None, "reset the environment first"
        assert now is not None, "the episode is over: reset the environment"
        chosen, row, kind = int(action), -1, -1
        if chosen > 0 and self.action_masks()[chosen]:
            row, kind = divmod(chosen - 1, 3)
        outcome = batch.apply(now, np.array([row]), np.array([kind]))
        reward = 0.0
        if outcome.ended[0]:
            reward = float(outcome.progress[0] if self.reward == "progress" else -outcome.present[0])
        if outcome.over[0]:
            mean_s = float(batch.mean_completion_s()[0])
            empty = np.zeros(self.observation_space.shape or (0,), np.float32)
            mask = np.zeros(1 + 3 * self.window, np.int8)
            mask[0] = 1
            self._now = None
            return empty, reward, True, False, {"action_mask": mask, "mean_completion_s": mean_s}
        observation, info = self._observe()
        return observation, reward, False, False, info

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """What is possible now; ending the slot always is."""
        mask = np.zeros(1 + 3 * self.window, np.bool_)
        mask[0] = True
        if self._now is not None:
            inside = self._now.allowed[: self.window]
            mask[1 : 1 + inside.size] = inside.reshape(-1)
        return mask

    def _observe(self) -> tuple[Singles, dict[str, Any]]:
        assert self._batch is not None
        self._now = self._batch.decisions()
        rows = self._now.rows[: self.window]
        out = np.zeros(self.window * N_JOB + N_GLOBAL, np.float32)
        out[: rows.size] = rows.reshape(-1)
        out[self.window * N_JOB :] = self._now.globals_[0]
        return np.clip(out, -BOUND, BOUND), {"action_mask": self.action_masks().astype(np.int8)}


def register() -> None:
    """Make the environment known to `gymnasium.make`."""
    if "trainmaster/Sizing-v0" not in gymnasium.registry:
        gymnasium.register("trainmaster/Sizing-v0", entry_point="trainmaster.learn.environment:SizingEnv")


register()
