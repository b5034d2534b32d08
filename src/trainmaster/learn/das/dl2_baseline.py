"""DL2, adapted to gangs of fixed size: its network says who goes next, hosts are chosen by load balance.

DL2 sizes elastic jobs, one worker at a time. A gang is shown to the shipped network as a job that takes its whole
gang as one worker (the cost being its share of the cluster) and would be twice as fast with a second; the order is that
of the scores for one more worker. Nothing is trained anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainmaster.learn.das import heuristics
from trainmaster.learn.das.heuristics import Start
from trainmaster.learn.das.world import World
from trainmaster.policies.dl2.features import N_GLOBAL, N_JOB, JobFeatures, LogTimes, global_features
from trainmaster.policies.dl2.weights import load_once
from trainmaster.policies.shared.speed_curves import SpeedCurves

SLOT_S = 1200.0
_LINEAR = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
"""Coefficients of a step time that halves with twice the workers."""


@dataclass
class Dl2Baseline:
    def __call__(self, world: World) -> Start | None:
        could = world.startable()
        stream, total = world.stream, float(world.gpus.sum())
        slots = np.exp(world.expected(could)[0]) / SLOT_S
        log_time = np.log(np.maximum(slots, 1e-6))
        times = LogTimes(log_time, len(could))
        rows = np.zeros((len(could), N_JOB), np.float32)
        features = JobFeatures(rows, SpeedCurves(np.tile(_LINEAR, (len(could), 1))))
        for i, job in enumerate(could.tolist()):
            cost = float(stream.gpus[job]) / total
            age = float(world.now_s - stream.submit_s[job]) / SLOT_S
            features.at_slot(i, log_time[i], age, 0.0, cost, cost, times, i)
            features.at_size(i, slots[i], 1, 0, 2, 0, cost, cost)
        seen = np.zeros((1, N_GLOBAL), np.float32)
        free = float(world.free.sum()) / total
        global_features(seen[0], free, free, len(could), times, float(stream.gpus[could].sum()) / total)
        scores, _ = load_once("").network.scores(rows, np.zeros(1, np.int64), seen)
        job = int(could[int(np.argmax(scores[:, 0]))])
        taken = heuristics.load_balance(world, job)
        return None if taken is None else (job, taken)
