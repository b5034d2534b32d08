"""The job_api on Kubernetes: users and rights are the cluster's, jobs are its objects, logs are its pods'.

A request to change a job changes its TrainingJob, so that `kubectl` and `trainmaster` never disagree, and tells the
control plane at once, so that the answer shows the change.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

from trainmaster.backends.kubernetes.api import paths
from trainmaster.backends.kubernetes.api.client import ApiError, Conflict, KubeClient
from trainmaster.backends.kubernetes.resources.training_job import job_id_of_object
from trainmaster.engine import queries
from trainmaster.engine.ports import EndedFilter
from trainmaster.jobspec.limits import Workers
from trainmaster.jobspec.model import CRD_PATHS, JobRequest
from trainmaster.jobspec.training_job import to_training_job
from trainmaster.model.errors import InputError, TrainmasterError
from trainmaster.service.api.job_api import Spaces, space_of
from trainmaster.service.api.problems import Conflict as Conflicting
from trainmaster.service.api.problems import Forbidden, NotFound, Refusal, Unauthorized
from trainmaster.service.api.views import Json
from trainmaster.service.control import requests as ask
from trainmaster.service.control.gateway import Gateway
from trainmaster.service.kubernetes.access import KubernetesAccess, Right
from trainmaster.service.kubernetes.logs import PodLogs
from trainmaster.service.local.logs import Chunk
from trainmaster.service.local.tokens import OPERATOR, Principal, Tokens

Verdict = Callable[[str], Awaitable[InputError | None]]
VERDICT_S = 10.0
"""How long a new object may take to reach the control plane before the answer is given without it."""
SPACES_S = 2.0
"""So long the list of namespaces that have jobs is kept."""
_VERB = {"cancel": "delete", "pause": "patch", "resume": "patch"}


class KubernetesJobApi:
    def __init__(self, gateway: Gateway, client: KubeClient, tokens: Tokens, verdict: Verdict) -> None:
        """`tokens` are the service's own. `verdict` waits until the control plane has taken a new job, and says what
        is wrong with it."""
        self.gateway = gateway
        self.client = client
        self.verdict = verdict
        self.rights = KubernetesAccess(client)
        self.tokens = tokens
        self._logs = PodLogs(client)
        self._spaces: tuple[float, frozenset[str]] = (float("-inf"), frozenset())

    async def identify(self, authorization: str | None) -> Principal:
        try:
            return self.tokens.who(authorization)
        except Unauthorized:
            return await self.rights.identify(authorization)

    async def seen(self, who: Principal) -> Spaces:
        if await self.rights.may(who, Right("list")):
            return None
        if time.monotonic() >= self._spaces[0]:
            there = await self.gateway.ask(ask.Read(lambda views: views.namespaces()))
            self._spaces = (time.monotonic() + SPACES_S, there)
        found = sorted(self._spaces[1])
        return frozenset([space for space in found if await self.rights.may(who, Right("list", space))])

    async def see_job(self, who: Principal, text: str) -> str:
        return await self._find(who, text, "get")

    async def _find(self, who: Principal, text: str, verb: str) -> str:
        """By id, by `namespace.name`, or by a name that is unique among what the user sees. Refuses those who lack the
        right to do this with it, whether there is such a job or not."""
        if "." in text:
            named = Right(verb, text.partition(".")[0])
            await self.rights.need(who, named)
            spaces: Spaces = frozenset({named.namespace})
        else:
            spaces = await self.seen(who)

        def look(views: Any) -> str:
            space, dot, name = text.partition(".")
            specs = queries.active_specs(views.engine)
            named = [s for s in specs if s.name == (name if dot else text) and (not dot or space_of(s.id) == space)]
            known = [s for s in named if spaces is None or space_of(s.id) in spaces]
            if known:
                return ask.the_one([spec.id for spec in known], len(known), text)
            return ask.find(views.plane, text) if spaces is None else _find_within(views.plane, text, spaces)

        job_id = await self.gateway.ask(ask.Read(look))
        space = space_of(job_id) or ""
        await self.rights.need(who, Right(verb, space))
        return job_id

    async def see_everything(self, who: Principal, what: str) -> None:
        group = "" if what == "nodes" else "trainmaster.dev"
        await self.rights.need(who, Right("list", resource=what, group=group))

    # -- changes -------------------------------------------------------------------------------------

    async def check_submission(self, who: Principal, body: JobRequest) -> None:
        """Also asks the API server whether it would take the object, which then is not made."""
        space = body.namespace or "default"
        await self.rights.need(who, Right("create", space))
        wanted = f"preview-{time.time_ns()}"
        training_job = to_training_job(body, space, wanted, None if body.array is None else 0, who.name)
        await self._create(training_job, wanted, params={"dryRun": "All"})

    async def submit(self, who: Principal, body: JobRequest) -> Json:
        space = body.namespace or "default"
        await self.rights.need(who, Right("create", space))
        wanted = body.request_id or hashlib.sha256(f"{who.name}{time.time_ns()}".encode()).hexdigest()
        copies = range(body.array or 1)
        training_jobs = [
            to_training_job(body, space, wanted, None if body.array is None else k, who.name) for k in copies
        ]
        made = [await self._create(training_job, wanted) for training_job in training_jobs]
        ids = [str(job_id_of_object(thing)) for thing in made]
        await self._accepted(ids, made)
        return {"id": ids[0], "ids": ids}

    async def _create(self, made: Json, wanted: str, **options: Any) -> Json:
        client, meta = self.client, made["metadata"]
        try:
            return await client.create(paths.training_jobs(meta["namespace"]), made, **options)
        except Conflict:
            there = await client.get(paths.training_jobs(meta["namespace"], meta["name"]))
            if (there["metadata"].get("annotations") or {}).get("trainmaster.dev/request") == wanted:
                return there  # the same request again: the same answer
            raise Conflicting(
                f"there is a TrainingJob '{meta['name']}' in namespace '{meta['namespace']}' already",
                where="name",
                expected="another name",
                remedy="Delete the old one, or leave --name out.",
            ) from None
        except ApiError as error:
            raise refusal_of(error) from None

    async def _accepted(self, ids: list[str], made: list[Json]) -> None:
        """Wait until the control plane has taken them, so that `job ID` finds what `submit` printed.

        When it rejects one, all are deleted and the reason is raised: nothing has changed then.
        """
        try:
            async with asyncio.timeout(VERDICT_S):
                faults = await asyncio.gather(*map(self.verdict, ids))
        except TimeoutError:
            return
        for fault in faults:
            if fault is not None:
                await asyncio.gather(*map(self._take_back, made))
                raise fault

    async def _take_back(self, made: Json) -> None:
        meta = made["metadata"]
        with contextlib.suppress(ApiError):
            path = paths.training_jobs(meta["namespace"], meta["name"])
            await self.client.delete(path, uid=meta["uid"])

    async def act(self, who: Principal, text: str, action: str) -> Json:
        job_id = await self._find(who, text, _VERB[action])
        if action != "cancel":
            await self._patch(job_id, {"spec": {"suspend": action == "pause"}})
        return await self.gateway.ask(ask.Act(job_id, _trusted(who), action))

    async def resize(self, who: Principal, text: str, workers: Workers) -> Json:
        job_id = await self._find(who, text, "patch")
        await self._patch(job_id, {"spec": {"workers": {"min": workers.min, "max": workers.max}}})
        return await self.gateway.ask(ask.Resize(job_id, _trusted(who), workers))

    async def edit(self, who: Principal, text: str, changes: Json) -> Json:
        job_id = await self._find(who, text, "patch")
        await self._patch(job_id, {"spec": {CRD_PATHS.get(field, field): value for field, value in changes.items()}})
        return await self.gateway.ask(ask.Edit(job_id, _trusted(who), changes))

    async def _patch(self, job_id: str, change: Json) -> None:
        space, name, _ = job_id.split(".")
        facts = await self.gateway.ask(ask.Inspect(lambda plane: _payload(plane, job_id)))
        if facts is not None and facts.get("kind") != "TrainingJob":
            owner = facts.get("owner") or {}
            raise Conflicting(
                f"{job_id} belongs to {owner.get('kind', 'its pods')} {owner.get('name', '')}".strip(),
                expected="a TrainingJob",
                remedy="Change that object instead.",
            )
        try:
            await self.client.patch(paths.training_jobs(space, name), change)
        except ApiError as error:
            raise refusal_of(error) from None

    # -- logs ----------------------------------------------------------------------------------------

    async def read_log(
        self, who: Principal, job_id: str, attempt: int | None, member: str | None, offset: int, limit: int
    ) -> Chunk:
        space = space_of(job_id) or ""
        await self.rights.need(who, Right("get", space, "pods", "", "log"))
        try:
            return await self._logs.read(job_id, attempt, member, offset, limit)
        except ApiError as error:
            raise refusal_of(error) from None


def _find_within(plane: Any, text: str, spaces: frozenset[str]) -> str:
    """A job of these namespaces by its id, or one that has ended by its name: nothing is said of others."""
    if space_of(text) in spaces and (queries.is_active(plane.live, text) or plane.store.find_ended(text) is not None):
        return text
    name = text.partition(".")[2] or text
    if not spaces:
        return ask.the_one([], 0, text)
    return ask.ended_named(plane, text, EndedFilter(name=name, namespaces=spaces))


def _payload(plane: Any, job_id: str) -> Json | None:
    if plane.engine is None:
        return None
    spec = queries.spec_of(plane.engine, job_id)
    return None if spec is None else dict(spec.payload)


def _trusted(who: Principal) -> Principal:
    """The cluster has said that they may; the owner's name in the books does not matter."""
    return Principal(who.name, OPERATOR)


def refusal_of(error: ApiError) -> TrainmasterError:
    """What the API server says, in our words and with our status."""
    causes = error.details.get("causes") or ()
    field = str(causes[0].get("field", "")) if causes else ""
    if error.status in (400, 422):
        return InputError(str(error)[:500], "what `kubectl explain trainingjob.spec` says", column=field or None)
    if error.status == 403:
        return Forbidden(str(error)[:500], expected="rights for Trainmaster's service account")
    if error.status == 404:
        return NotFound(str(error)[:500])
    if error.status == 409:
        return Conflicting(str(error)[:500])
    refusal = Refusal(f"the API server does not answer: {error}"[:500], remedy="Try again.")
    refusal.status = 503
    return refusal
