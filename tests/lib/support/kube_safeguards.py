"""Safeguards of backend, attempt, journal and election on Kubernetes, each with the change that removes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from trainmaster.backends.kubernetes import election
from trainmaster.backends.kubernetes.attempts import pod_objects
from trainmaster.backends.kubernetes.attempts.pod_attempt import Member, Run
from trainmaster.backends.kubernetes.attempts.registry import AttemptRegistry
from trainmaster.backends.kubernetes.config_map_blobs import ConfigMapBlobs
from trainmaster.backends.kubernetes.election import Election, ElectionRule
from trainmaster.backends.kubernetes.launchers.hub import AgentHub
from trainmaster.backends.kubernetes.nodes.cluster_watch import ClusterWatch
from trainmaster.gang.actions import NOBODYS, Exited
from trainmaster.model.lease import LeaseRule
from trainmaster.stores.journal import JournalStore

Patch = pytest.MonkeyPatch


def lease_of_launchers_is_waited_for(patch: Patch) -> None:
    patch.setattr(LeaseRule, "certainly_over_ms", lambda _, answered_ms: answered_ms)


def lease_of_the_last_leader_is_waited_for(patch: Patch) -> None:
    patch.setattr(Election, "_run_out", lambda *_: True)


def leader_gives_up_before_its_lease_ends(patch: Patch) -> None:
    patch.setattr(election, "ElectionRule", partial(ElectionRule, give_up_s=90.0))


def new_leader_claims_the_journal(patch: Patch) -> None:
    patch.setattr(JournalStore, "claim", lambda _: None)
    patch.setattr(ConfigMapBlobs, "_check", lambda _: None)


def new_leader_adopts_pods(patch: Patch) -> None:
    patch.setattr(ClusterWatch, "our_pods", lambda _: iter(()))


def new_leader_waits_for_leases_of_the_last(patch: Patch) -> None:
    adopt = AgentHub.adopt

    def adopted(self: AgentHub, key: Any, member: str, host: str = "") -> None:
        adopt(self, key, member, host)
        trainer = self._trainer(key, member)
        assert trainer is not None
        trainer.answered_ms = None

    patch.setattr(AgentHub, "adopt", adopted)


def hub_answers_only_while_it_leads(patch: Patch) -> None:
    patch.setattr(AgentHub, "serving", lambda _: True)
    patch.setattr(AgentHub, "halt", lambda _: None)


def stopped_launchers_end_with_a_code_of_their_own(patch: Patch) -> None:
    patch.setattr(pod_objects, "NOBODYS_FAULT", frozenset())
    patch.setattr(pod_objects, "_was_deleted", lambda *_: False)


def vanished_pods_are_waited_for(patch: Patch) -> None:
    def vanished(self: Run, member: Member, _: bool) -> None:
        self.ended(member, Exited(pod_objects.KILLED, "deleted", NOBODYS))

    patch.setattr(Run, "_vanished", vanished)


def devices_on_nodes_that_come_back_are_waited_for(patch: Patch) -> None:
    patch.setattr(AttemptRegistry, "full_node", lambda *_: None)


def devices_are_waited_for(patch: Patch) -> None:
    """Seed 3 is clean without the wait for room alone, which would hide this."""
    devices_on_nodes_that_come_back_are_waited_for(patch)
    patch.setattr(pod_objects, "is_released", lambda _: True)


SAFEGUARDS: dict[Callable[[Patch], None], int] = {
    lease_of_launchers_is_waited_for: 0,
    lease_of_the_last_leader_is_waited_for: 0,
    leader_gives_up_before_its_lease_ends: 18,
    new_leader_claims_the_journal: 269,
    new_leader_adopts_pods: 2,
    new_leader_waits_for_leases_of_the_last: 2,
    hub_answers_only_while_it_leads: 0,
    stopped_launchers_end_with_a_code_of_their_own: 0,
    vanished_pods_are_waited_for: 97,
    devices_are_waited_for: 3,
    devices_on_nodes_that_come_back_are_waited_for: 40,
}
"""Each with a seed that finds its removal, tried first."""
