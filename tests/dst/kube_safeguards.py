"""Safeguards of backend, attempt, journal and election on Kubernetes, each with the change that removes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from trainmaster.backends.kubernetes import election, orders, pods
from trainmaster.backends.kubernetes.agent_hub import AgentHub
from trainmaster.backends.kubernetes.blobs import ConfigMapBlobs
from trainmaster.backends.kubernetes.client import KubeClient
from trainmaster.backends.kubernetes.cluster_watch import ClusterWatch
from trainmaster.backends.kubernetes.election import Election, ElectionRule
from trainmaster.backends.kubernetes.pod_writer import PodWriter
from trainmaster.backends.kubernetes.reflector import Reflector
from trainmaster.backends.kubernetes.run import Member, Run
from trainmaster.backends.kubernetes.run_book import RunBook
from trainmaster.gang import attempt
from trainmaster.gang.actions import NOBODYS, Exited
from trainmaster.model import event as ev
from trainmaster.model.lease import LeaseRule
from trainmaster.service.control.control_plane import ControlPlane
from trainmaster.service.kubernetes import job_source
from trainmaster.stores.journal import BlobTaken, JournalStore

Patch = pytest.MonkeyPatch


def lease_of_launchers_is_waited_for(patch: Patch) -> None:
    patch.setattr(LeaseRule, "certainly_over_ms", lambda _, answered_ms: answered_ms)


def lease_of_the_last_leader_is_waited_for(patch: Patch) -> None:
    patch.setattr(Election, "_run_out", lambda *_: True)


def leader_gives_up_before_its_lease_ends(patch: Patch) -> None:
    patch.setattr(election, "ElectionRule", partial(ElectionRule, give_up_s=90.0))


def lease_is_written_at_the_version_that_was_read(patch: Patch) -> None:
    replace = KubeClient.replace

    async def replaced(self: KubeClient, path: str, body: Any, **options: Any) -> Any:
        body["metadata"].pop("resourceVersion", None)
        return await replace(self, path, body, **options)

    patch.setattr(KubeClient, "replace", replaced)


def journal_entry_is_created_once(patch: Patch) -> None:
    """Nor does a leader ask whether it leads: either of the two is enough."""
    create = ConfigMapBlobs.create

    def created(self: ConfigMapBlobs, name: str, data: bytes) -> None:
        try:
            create(self, name, data)
        except BlobTaken:
            return

    patch.setattr(ConfigMapBlobs, "create", created)
    patch.setattr(ConfigMapBlobs, "_check", lambda _: None)


def new_leader_claims_the_journal(patch: Patch) -> None:
    patch.setattr(JournalStore, "claim", lambda _: None)
    patch.setattr(ConfigMapBlobs, "_check", lambda _: None)


def new_leader_lists_anew(patch: Patch) -> None:
    async def refresh(self: Reflector) -> None:
        await self.synced.wait()

    patch.setattr(Reflector, "refresh", refresh)


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


def new_leader_cancels_jobs_without_an_object(patch: Patch) -> None:
    patch.setattr(job_source.CancelOthers, "prepare", lambda *_: None)


def new_leader_tells_all_of_nodes(patch: Patch) -> None:
    patch.setattr(ClusterWatch, "tell_all", lambda _: None)


def hub_answers_only_while_it_leads(patch: Patch) -> None:
    patch.setattr(AgentHub, "serving", lambda _: True)
    patch.setattr(AgentHub, "halt", lambda _: None)


def fenced_launchers_are_not_renewed(patch: Patch) -> None:
    patch.setattr(AgentHub, "fence", lambda *_: None)


def generations_are_fenced(patch: Patch) -> None:
    patch.setattr(RunBook, "is_fenced", lambda *_: False)
    patch.setattr(orders.Orders, "_fence", lambda *_: None)


def deleted_pods_have_not_finished(patch: Patch) -> None:
    patch.setattr(pods, "_was_deleted", lambda *_: False)


def who_was_asked_to_end_has_not_finished(patch: Patch) -> None:
    """Whether by the pod's deletion, or by the attempt."""
    patch.setattr(pods, "_was_deleted", lambda *_: False)
    patch.setattr(attempt.Member, "succeeded", property(lambda self: self.end is not None and self.end.code == 0))


def stopped_launchers_end_with_a_code_of_their_own(patch: Patch) -> None:
    patch.setattr(pods, "NOBODYS_FAULT", frozenset())
    patch.setattr(pods, "_was_deleted", lambda *_: False)


def vanished_pods_are_waited_for(patch: Patch) -> None:
    def vanished(self: Run, member: Member, _: bool) -> None:
        self.ended(member, Exited(pods.KILLED, "deleted", NOBODYS))

    patch.setattr(Run, "_vanished", vanished)


def pods_are_deleted_by_uid(patch: Patch) -> None:
    delete = PodWriter.delete

    async def deleted(self: PodWriter, namespace: str, which: Sequence[Any], grace_s: int | None) -> None:
        await delete(self, namespace, [(name, None) for name, _ in which], grace_s)

    patch.setattr(PodWriter, "delete", deleted)


def devices_are_waited_for(patch: Patch) -> None:
    patch.setattr(pods, "is_released", lambda _: True)


def reports_are_kept_when_a_commit_fails(patch: Patch) -> None:
    patch.setattr(ControlPlane, "_keep", lambda *_: None)


def lost_nodes_are_waited_for(patch: Patch) -> None:
    """A node that is lost may run its trainers until their leases end."""
    init = ev.NodeLost.__init__

    def lost(self: ev.NodeLost, node: int, _: int, *rest: Any) -> None:
        init(self, node, -(10**9), *rest)

    patch.setattr(ev.NodeLost, "__init__", lost)


SAFEGUARDS: dict[str, Callable[[Patch], None]] = {
    name: remove
    for name, remove in list(globals().items())
    if callable(remove) and getattr(remove, "__module__", "") == __name__ and not name.startswith("_")
}
