"""The engine's state as data. The modules beside this one are functions that change it.

Two ledgers: `planned` is what policies see (devices of jobs being stopped count as free), `physical` is
what processes may really occupy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from trainmaster.engine.held import Held
from trainmaster.engine.ports import Estimator, Immediate
from trainmaster.engine.records import Ended, Settings
from trainmaster.model.cluster import Cluster
from trainmaster.model.command import Command
from trainmaster.model.job import JobId
from trainmaster.model.ledger import Ledger
from trainmaster.model.plan import Rejection
from trainmaster.model.policy import Policy
from trainmaster.model.reasons import Why
from trainmaster.model.table import JobColumns
from trainmaster.model.units import NEVER_MS


class State:
    """Everything an engine knows. Jobs are named by their slot in `columns`."""

    def __init__(self, cluster: Cluster, policy: Policy, estimator: Estimator, settings: Settings) -> None:
        self.cluster = cluster
        self.policy = policy
        self.estimator = estimator
        self.settings = settings
        self.now_ms = 0
        self.columns = JobColumns(cluster)
        self.up = np.ones(len(cluster.nodes), np.bool_)
        self.planned = Ledger.full(cluster)
        self.physical = Ledger.full(cluster)

        self.held = Held(self.columns.allocations)
        """What the processes of a live incarnation may occupy; taken from `physical`."""
        self.outstanding: dict[int, tuple[Command, int]] = {}
        """The command of a job that has no answer yet, and when it was last sent."""
        self.last_seq: dict[int, int] = {}
        """Number of the last command for a live incarnation: what was seen earlier says nothing of it."""
        self.doubts: dict[int, dict[int, int]] = {}
        """By job and lost node: when its members there have certainly ended (their lease has run out)."""
        self.ended_on: dict[int, set[int]] = {}
        """Nodes on which the members of a live incarnation have certainly ended."""
        self.node_sets: dict[str, frozenset[int]] = {}
        """Nodes that jobs of each set may be given."""
        self.used: dict[int, tuple[int, int, int]] = {}
        """GPUs, CPU and memory that others use, by node."""
        self.withheld: dict[int, tuple[tuple[int, ...], int, int]] = {}
        """What of it is taken from both ledgers: devices, CPU, memory. Less than `used` while our jobs are there."""
        self.short: set[int] = set()
        """Nodes of which not all that others use could be withheld yet."""
        self.reserved: list[int] = []
        """Jobs whose launch waits for devices that are being freed, in the order of reservation."""

        self.memo_values: Mapping[str, Any] = {}
        self.memo_columns: set[str] = set()
        self.details: dict[int, Mapping[str, Any]] = {}
        self.rejections: dict[int, Rejection] = {}
        self.known: set[JobId] = set()
        self.ended_as: dict[JobId, int] = {}
        """The phase in which a job ended, for those that wait for it."""
        self.waits_for: dict[int, set[JobId]] = {}
        """Jobs that must finish before this one may start."""
        self.held_back: dict[int, Why] = {}
        """Jobs that policies do not see yet, and why."""
        self.caps: dict[int, int] = {}
        """Largest number of workers that a team's quota leaves a job, where that is less than it takes."""
        self.holds_changed = False
        self.entity_weights: dict[str, float] = dict(settings.entity_weights)
        self.quotas: dict[str, int] = {}
        """GPU thousandths that a team's jobs may use at a time; teams that are absent have no limit."""
        self.ended: list[Ended] = []
        self.commands: list[Command] = []
        self.changed = False
        """Whether something happened that the policy should look at."""
        self.look_again = False
        """Whether the policy is asked once more within this step (see `turnover`)."""
        self.wake_at_ms = NEVER_MS
        self.round_begun_ms = -1
        """The step in which the last round began that did not begin at its very start."""
        self.next_resend_ms = NEVER_MS
        self.next_backoff_ms = NEVER_MS
        self.seq = 0
        self.notes: list[str] = []
        self.plans_refused = 0
        self.decisions = 0
        self.decide_cpu_s = 0.0
        self.immediate: Immediate | None = None
        """A backend to which whole plans may be handed (see `turnover`); None: commands and answers alone."""
        self._decide_clock: Callable[[], float] | None = None

    def by_arrival(self, slots: Iterable[int]) -> list[int]:
        """Slots in the order in which the jobs came: slots are reused, so their own order means nothing."""
        arrival = self.columns.ints["arrival"]
        return sorted(slots, key=lambda slot: int(arrival[slot]))
