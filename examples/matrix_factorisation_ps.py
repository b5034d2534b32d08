"""Matrix factorisation by parameter server: R ~ U V', trained by asynchronous workers on generated ratings.

    python examples/matrix_factorisation_ps.py                      # alone: the server is a thread
    trainmaster submit --elastic 1..4 --servers 1..2 -- python examples/matrix_factorisation_ps.py

Workers and servers may come and go while it runs; every worker draws its own ratings.
"""

from __future__ import annotations

import argparse
import os

from trainmaster.runtime import ps

ps.serve_if_server()  # a server process stays in here: it needs neither data nor model

import numpy as np  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--users", type=int, default=2000)
parser.add_argument("--items", type=int, default=1500)
parser.add_argument("--rank", type=int, default=16)
parser.add_argument("--batch", type=int, default=4096)
parser.add_argument("--steps", type=int, default=1500, help="gradients of all workers together")
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

# The ratings of a hidden model: any worker can make them, so nothing has to be shipped.
hidden = np.random.Generator(np.random.PCG64(options.seed))
true_users = hidden.standard_normal((options.users, options.rank)).astype(np.float32)
true_items = hidden.standard_normal((options.items, options.rank)).astype(np.float32)

first = np.random.Generator(np.random.PCG64(options.seed + 1))
factors = {
    "users": (0.3 * first.standard_normal((options.users, options.rank))).astype(np.float32),
    "items": (0.3 * first.standard_normal((options.items, options.rank))).astype(np.float32),
}
number = int(os.environ.get("TRAINMASTER_MEMBER", "worker-0").rpartition("-")[2])
mine = np.random.Generator(np.random.PCG64([options.seed, number]))


def draw() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    users = mine.integers(options.users, size=options.batch)
    items = mine.integers(options.items, size=options.batch)
    ratings = np.einsum("ij,ij->i", true_users[users], true_items[items])
    return users, items, ratings + 0.1 * mine.standard_normal(options.batch).astype(np.float32)


with ps.join(factors, ps.Adagrad(lr=0.2), staleness=8, save_every=500) as job:
    users_now, items_now = job.parameters["users"], job.parameters["items"]
    for step in job.steps(options.steps):
        users, items, ratings = draw()
        error = np.einsum("ij,ij->i", users_now[users], items_now[items]) - ratings
        np.add.at(job.gradients["users"], users, error[:, None] * items_now[items])
        np.add.at(job.gradients["items"], items, error[:, None] * users_now[users])
        loss = float(np.mean(error**2))
        job.push_pull(loss=loss)
        if step % 100 == 0:
            print(f"{job.work:6} gradients, {job.workers} workers: mean squared error {loss:.4f}", flush=True)
    users, items, ratings = draw()
    error = np.einsum("ij,ij->i", users_now[users], items_now[items]) - ratings
    print(f"{job.work:6} gradients: mean squared error {float(np.mean(error**2)):.4f} (noise alone: 0.01)")
