"""Train somebody else's PPO on the sizing environment: sb3-contrib's MaskablePPO, which asks `action_masks()`.

    pip install sb3-contrib
    python examples/sizing_with_ppo.py --steps 20000

Prints the mean completion time on traces that training never saw, before and after, beside equal shares (DRF by
bundles) on the same traces. A few thousand steps only show that it runs; expect little before a million.
"""

from __future__ import annotations

import argparse
import time

import gymnasium
import numpy as np
from sb3_contrib import MaskablePPO

import trainmaster.learn.environment  # noqa: F401  (importing it registers the environment)
from trainmaster.learn.dl2.evaluate import completion_s
from trainmaster.learn.sizing.trace import SizingSpec, draw_trace

SPEC = SizingSpec(servers=8, jobs=8, arrivals_per_slot_max=1)
UNSEEN = range(5_000_000, 5_000_005)


def mean_completion_s(env: gymnasium.Env, model: MaskablePPO) -> float:
    found = []
    for seed in UNSEEN:
        observation, info = env.reset(options={"trace": seed})
        over = False
        while not over:
            action, _ = model.predict(observation, action_masks=info["action_mask"].astype(bool), deterministic=True)
            observation, _, over, _, info = env.step(np.int64(action))
        found.append(info["mean_completion_s"])
    return float(np.mean(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    wanted = parser.parse_args()
    env = gymnasium.make("trainmaster/Sizing-v0", spec=SPEC, window=8).unwrapped
    model = MaskablePPO("MlpPolicy", env, n_steps=1024, batch_size=256, gamma=0.999, seed=1, device="cpu")
    before_s = mean_completion_s(env, model)
    begun = time.process_time()
    model.learn(wanted.steps)
    cpu_s = time.process_time() - begun
    equal_s = float(np.mean([completion_s(draw_trace(SPEC, seed), "drf") for seed in UNSEEN]))
    print(f"untrained {before_s:,.0f} s, after {wanted.steps:,} steps {mean_completion_s(env, model):,.0f} s, "
          f"drf {equal_s:,.0f} s; {wanted.steps / cpu_s:,.0f} steps per CPU second")  # fmt: skip


if __name__ == "__main__":
    main()
