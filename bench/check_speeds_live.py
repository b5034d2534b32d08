"""Whether the estimator tells how fast real PyTorch jobs are with two workers from how fast they are with one.

    python bench/check_speeds_live.py [--seconds S] [--repeats N]

Runs examples of the repository on this machine, as `trainmaster profile` does: one worker, then two. Two cores that
nothing else uses are needed; restarts alone vary by 8 %.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from trainmaster.cli.learning.profile_runs import measure
from trainmaster.estimate.speeds.model import SpeedModel
from trainmaster.estimate.speeds.observations import Observation, Place, Profile, observed
from trainmaster.estimate.speeds.population import shipped

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PROGRAMS = {
    "image_classifier": [sys.executable, str(EXAMPLES / "image_classifier.py")],
    "transformer_lm": [sys.executable, str(EXAMPLES / "transformer_lm.py")],
}
ONE, TWO = Place(1), Place(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(f"load average {os.getloadavg()[0]:.1f}; steps per second with 1 and 2 workers; 2 predicted")
    for name, command in PROGRAMS.items():
        profile = Profile(name)
        runs = [[measure(command, n, seconds=args.seconds).steps_per_s for n in (1, 2)] for _ in range(args.repeats)]
        earlier: list[Observation] = []
        for k, (one, two) in enumerate(runs):
            here = [observed(profile, ONE, one, 0.04, run=f"{k}")]
            alone = float(SpeedModel(shipped(), here).estimate(profile, [TWO]).speed()[0])
            text = f"{name:20} {one:9.2f} {two:9.2f}; by 1 alone {alone:8.2f} ({alone / two - 1:+.0%})"
            if earlier:
                model = SpeedModel(shipped(), [*earlier, *here])
                again = float(model.estimate(profile, [TWO], here).speed()[0])
                text += f"; with earlier runs {again:8.2f} ({again / two - 1:+.0%})"
            print(text, flush=True)
            earlier += [observed(profile, TWO, two, 0.04, run=f"{k}"), *here]


if __name__ == "__main__":
    main()
