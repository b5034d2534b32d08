"""Choices in the slot simulator from scores, as an episode makes them, for tests that play it step by step."""

import numpy as np

from trainmaster.learn.sizing.batch import Decisions


def choose(decisions: Decisions, scores: np.ndarray, void: np.ndarray, uniform: np.ndarray | None = None):
    """Row and action for each decision (row -1: stop): sampled from the masked softmax by these numbers in [0, 1);
    without them stop if that is likelier than all actions together, else take the likeliest."""
    rows, actions = np.full(len(void), -1), np.full(len(void), -1)
    ends = np.append(decisions.starts[1:], len(decisions.rows))
    for k, first in enumerate(decisions.starts.tolist()):
        own = np.where(decisions.allowed[first : ends[k]], scores[first : ends[k]], -np.inf).astype(float).ravel()
        top = max(own.max(), float(void[k]))
        chances = np.concatenate([[np.exp(void[k] - top)], np.exp(own - top)])
        if uniform is not None:
            picked = int(np.searchsorted(np.cumsum(chances), uniform[k] * chances.sum(), side="right"))
        else:
            picked = 0 if chances[0] > 0.5 * chances.sum() else 1 + int(np.argmax(own))
        if picked:
            row, actions[k] = divmod(picked - 1, 3)
            rows[k] = first + row
    return rows, actions
