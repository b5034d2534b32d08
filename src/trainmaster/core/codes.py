"""Numbers that stand for words in compiled code. Tests hold them equal to the enumerations of `model` and `engine`."""

from __future__ import annotations

PENDING, RESERVED, LAUNCHING, RUNNING, RESIZING, STOPPING, LOST, PAUSED, FINISHED, FAILED, CANCELLED, REJECTED = range(
    12
)
"""Phases of a job (`model.job.Phase`)."""
PHASES = (
    "PENDING", "RESERVED", "LAUNCHING", "RUNNING", "RESIZING", "STOPPING", "LOST", "PAUSED", "FINISHED", "FAILED",
    "CANCELLED", "REJECTED",
)  # fmt: skip
(
    RESERVE, UNRESERVE, LAUNCH_SENT, HAS_STARTED, RESIZE_SENT, HAS_RESIZED, STOP_SENT, LOSE, REQUEUE, MOVE, FINISH,
    GIVE_UP, REJECT, CANCEL, PAUSE, RESUME,
) = range(16)  # fmt: skip
TRIGGERS = (
    "reserve", "unreserve", "launch", "started", "resize", "resized", "stop", "lose", "requeue", "move", "finish",
    "give-up", "reject", "cancel", "pause", "resume",
)  # fmt: skip
"""What moves a job from phase to phase (`engine.lifecycle.Trigger`, in its order)."""
CAPACITY, BEHIND, SHAPE, OUTRANKED, BACKOFF, NO_NODE = 1, 2, 3, 4, 6, 8
"""Why a job waits (`model.reasons.Why`)."""
PACK, SPREAD, FIRST_FIT, BEST_FIT, COUNT = range(5)
"""Placement (`model.placement.Strategy`)."""
HEAD, PART = 3, 4
N_PARTS, GPU_TYPE, SHARE = 0, 1, 2
"""A packed gang: `[parts, type, share_milli, (node, workers, servers, devices) per part, device, ...]`."""
WHOLE = 1000
"""Thousandths of a device."""
MS_PER_S = 1000.0
NEVER_MS = 2**62
N_TRIGGERS = 16
N_OVER_INTS, N_OVER_FLOATS = 6, 4
"""Numbers in the last word on a job without a name (`EngineCore.over_ints`)."""
BY_ARRIVAL, BY_REMAINING, BY_SERVICE, BY_DEADLINE, BY_QUEUE, BY_GIVEN_KEY = range(6)
"""Keys of a queue: order of arrival, seconds left, GPU-seconds attained, deadline, level of attained service, or one
that somebody else computes."""
(
    SOUND, NOT_CHANGEABLE, NOT_PREEMPTIBLE, HOLDS_NOTHING, WORKERS, SERVERS, TYPE, PART_ORDER, NODE_DOWN, TWO_TYPES,
    PART_DEVICES, DEVICE_TWICE, NO_SUCH_DEVICE, NOT_WHOLE, WRONG_SHARE, TAKEN,
) = range(16)  # fmt: skip
"""Rules that a plan may break (`core.engine.verify.RULES` has the words)."""
WORDS = (
    "", "preempted", "moved", "cancelled", "paused", "its user changed its size", "a node of the gang was lost",
    "superseded", "it reached a limit of its job",
)  # fmt: skip
"""Why a gang is stopped; commands carry the index."""
PREEMPTED, MOVED, USER_CANCELLED, USER_PAUSED, USER_RESIZED, NODE_LOST, SUPERSEDED, HALTED = range(1, 9)
MOST_TOLD_APART = 62
"""Nodes with at least so many whole devices free are in one class of `core.node_index`."""
NOT_MADE = -1
"""A pass gives this instead of a verdict on its plan: the policy's `decide` has to make the decision."""
MAX_CLASSES = 256
"""Classes of jobs that ask for the same (`core.waiting_queue`)."""
