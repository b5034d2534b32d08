"""Random input on every way in: none may end in an error that is not ours. `make fuzz` runs a million cases.

`python -m support.fuzz --cases 1000000 --seed 0`. REST by our own generator, which keeps a service busy, and by
schemathesis; lines, TrainingJobs and traces by hypothesis, with the hostile values of `support.hostile` among others.
Fields, routes and columns come from the models.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, get_args

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from service_bench import OPERATOR_TOKEN, Bench

from support.hostile import HOSTILE, ODD, as_json, as_text, example, training_job
from support.rest_fuzz import Fuzz
from trainmaster.backends.kubernetes.resources.training_job import spec_of_trainingjob
from trainmaster.gang import protocol as wire
from trainmaster.jobspec.model import TrainingJobSpec
from trainmaster.model.cluster import parse_cluster
from trainmaster.model.codec import spec_from_json, spec_to_json
from trainmaster.model.errors import InputError
from trainmaster.service.api.app import build_app
from trainmaster.service.api.job_api import LocalJobApi
from trainmaster.service.api.routes.context import Context
from trainmaster.service.control.control_plane import ControlPlane, Request
from trainmaster.service.control.gateway import unpacked
from trainmaster.service.local.logs import LogFolder
from trainmaster.service.local.tokens import OPERATOR, Principal, Tokens
from trainmaster.sim.workload import workload
from trainmaster.traces import load
from trainmaster.traces.schema import JOB_COLUMNS

T = TypeVar("T")
SHARES = {"rest": 0.60, "lines": 0.20, "training-jobs": 0.14, "traces": 0.05, "schema": 0.01}
"""Of all cases; the dearer a case, the fewer."""
RUN = 10_000
SMALL = [value for value in (*HOSTILE.values(), *ODD.values()) if len(str(value)[:2000]) < 1000]
SCALARS = st.sampled_from(SMALL) | st.integers() | st.floats() | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)


def _hypothesis(cases: int, number: int, strategy: st.SearchStrategy[T], check: Callable[[T], None]) -> None:
    """In runs of their own seeds: hypothesis remembers all that a run has tried."""
    for begun in range(0, cases, RUN):
        examples = min(RUN, cases - begun)
        quick = settings(max_examples=examples, database=None, deadline=None, suppress_health_check=[*HealthCheck])  # type: ignore[arg-type]
        seed(number * 1_000_003 + begun)(quick(given(strategy)(check)))()


def rest(cases: int, number: int, home: Path) -> str:
    fuzz = Fuzz(number, home)
    fuzz.run(cases)
    return f"answers by status: {dict(sorted(fuzz.statuses.items()))}"


def lines(cases: int, number: int, home: Path) -> str:
    """Messages with some fields replaced, and broken lines."""

    @st.composite
    def line(draw: st.DrawFn) -> bytes:
        message = example(draw(st.sampled_from(get_args(wire.Message))))
        for name in draw(st.lists(st.sampled_from(sorted(message)), max_size=3)):
            message[name] = draw(VALUES)
        text = as_json(message).encode()
        at = draw(st.integers(0, len(text)))
        return text if draw(st.booleans()) else text[:at] + draw(st.binary(max_size=4)) + text[at:]

    def check(data: bytes) -> None:
        try:
            messages = wire.LineBuffer().feed(data + b"\n")
        except wire.WireError:
            return
        assert [wire.decode(wire.encode(message)) for message in messages] == messages

    _hypothesis(cases, number, line(), check)
    return "messages or refused"


def training_jobs(cases: int, number: int, home: Path) -> str:
    fields = st.sampled_from(sorted({*TrainingJobSpec.model_fields} - {"template", "server_template"}))

    def check(given: dict[str, Any]) -> None:
        with suppress(InputError):
            spec = spec_of_trainingjob(training_job(given), 0)
            assert spec_from_json(json.loads(json.dumps(spec_to_json(spec)))) == spec

    _hypothesis(cases, number, st.dictionaries(fields, VALUES, max_size=4), check)
    return "jobs or refused"


def traces(cases: int, number: int, home: Path) -> str:
    good = {"job_id": "a", "submit_s": "0", "gpus": "1", "duration_s": "60"}
    names = st.sampled_from([column.name for column in JOB_COLUMNS])
    cells = VALUES.map(as_text) | st.from_regex(r"-?[0-9]{1,30}(\.[0-9]+)?([eE]-?[0-9]{1,4})?", fullmatch=True)
    path, cluster = home / "trace.csv", parse_cluster("v100=2x2")

    def check(changes: list[tuple[str, str]]) -> None:
        row = {**good, **dict(changes)}
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([[*row], [*row.values()]])
        path.write_text(text.getvalue(), errors="replace")
        with suppress(InputError):
            for spec in workload(load(path), cluster).fit:
                assert spec_from_json(json.loads(json.dumps(spec_to_json(spec)))) == spec

    _hypothesis(cases, number, st.lists(st.tuples(names, cells), max_size=4), check)
    return "traces or refused"


class InlineGateway:
    """Asks the control plane at once, in the caller's thread."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    async def ask(self, request: Request[T]) -> T:
        return unpacked(self.plane.batch([request])[0])

    async def ask_soon(self, request: Request[T], wait_s: float) -> T | None:
        return await self.ask(request)

    async def news(self, wait_s: float) -> None:
        return


def schema(cases: int, number: int, home: Path) -> str:
    """Schemathesis, by the published schema: whatever comes in, no 5xx goes out."""
    import schemathesis

    plane = Bench(home).plane
    gateway = InlineGateway(plane)
    tokens = Tokens([(OPERATOR_TOKEN, Principal("owner", OPERATOR))])
    app = build_app(Context(gateway, LocalJobApi(gateway, tokens, LogFolder(home)), "simulated", started_s=0.0))
    found = schemathesis.openapi.from_asgi("/openapi.json", app).include(path_regex="^/api").get_all_operations()
    operations = [result.ok() for result in found]  # type: ignore[union-attr]
    tried: dict[str, int] = {}

    def check(case: Any) -> None:
        if isinstance(case.query, dict):
            case.query.pop("wait_s", None)
        response = case.call(headers={"Authorization": f"Bearer {OPERATOR_TOKEN}"})
        tried[case.operation.label] = tried.get(case.operation.label, 0) + 1
        assert response.status_code < 500, (case, response.text)
        if response.status_code >= 400:
            assert json.loads(response.text)["what"]

    for operation in operations:
        _hypothesis(max(cases // len(operations), 5), number, operation.as_strategy(), check)
    assert len(tried) >= 12, tried
    assert plane.tally.policy_faults == 0 and plane.tally.set_aside == 0
    return f"{sum(tried.values())} calls to {len(tried)} routes"


TARGETS: dict[str, Callable[[int, int, Path], str]] = {
    "rest": rest, "lines": lines, "training-jobs": training_jobs, "traces": traces, "schema": schema,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, share in SHARES.items():
            cases = round(asked.cases * share)
            told = TARGETS[name](cases, asked.seed, Path(folder))
            print(f"{name}: {cases} cases of seed {asked.seed}, no error but ours; {told}", flush=True)


if __name__ == "__main__":
    main()
