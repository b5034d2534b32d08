"""Random requests to every route of the REST application, in process: none may end in a server error.

Routes, parameters and fields come from the application's own
OpenAPI document, so that a new one is fuzzed without further ado. A fault is told with its request.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlencode

from service_bench import ANN_TOKEN, BOB_TOKEN, OPERATOR_TOKEN, Bench

from trainmaster.dst.control_plane.inline_asgi import Call
from trainmaster.jobspec.model import JobRequest

HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2, 2**31, 2**63, 2**70, -(2**70), 10**400, 0.5, 1e-9, 1e15, 1e300, -0.0, "", "x", "٣",
    "worker-²", "a\0b", "\ud800", "\u202e", "job-1", "../../etc/passwd", "x" * 5_000, "1e400", [], {}, [[]],
    ["x"] * 1_100,
    {"min": 0}, {"min": 1, "max": 32}, {"min": 2, "max": 1}, {"k": "v"}, {"": ""},
    {"kind": "constant", "value": 10**400},
    float("nan"), float("inf"), float("-inf"),
]  # fmt: skip
GOOD: dict[str, list[Any]] = {
    "command": [["train"]], "workers": [{"min": 1, "max": 2}, {"min": 1, "max": 32}], "steps": [5, 0.5],
    "servers": [{"min": 0, "max": 2}], "after": [["job-1"], ["job-2", "a"]], "name": ["a", "b"], "array": [1, 2],
    "deadline_s": [1, 1e6], "utility": [{"kind": "constant", "value": 3}], "entity": ["team"],
    "policy": ["fifo", "srtf"],
    "request_id": ["r"], "gpus_per_worker": [0, 0.5, 1], "weight": [2], "quota_gpus": [0, 3], "priority": [-5, 5],
}  # fmt: skip
TOKENS = (*[OPERATOR_TOKEN] * 6, *[ANN_TOKEN] * 4, *[BOB_TOKEN] * 4, "nobody")
JOBS_AT_MOST = 300


class Fuzz:
    def __init__(self, seed: int, home: Path) -> None:
        self.seed, self.home = seed, home
        self.random = Random(seed)
        self.statuses: dict[int, int] = {}
        self._begin()

    def _begin(self) -> None:
        self.bench = Bench(self.home, nodes="v100=4x4")
        document = self.bench.openapi()
        self.schemas = document["components"]["schemas"]
        self.routes = [
            (method.upper(), path.removeprefix("/api/v1"), operation)
            for path, operations in sorted(document["paths"].items())
            for method, operation in sorted(operations.items())
            if path.startswith("/api/v1") and not path.endswith(("/situation", "/preview"))
        ]

    def run(self, cases: int) -> None:
        for number in range(cases):
            call, token = self._call(), self.random.choice(TOKENS)
            try:
                reply = self.bench.calls([call], token)[0]
            except Exception as error:
                raise AssertionError(f"case {number} of seed {self.seed}: {call!r:.3000}") from error
            assert 200 <= reply.status < 500, f"case {number} of seed {self.seed}: {reply} to {call!r:.3000}"
            self.statuses[reply.status] = self.statuses.get(reply.status, 0) + 1
            if number % 50 == 0:
                self.bench.pass_s(self.random.choice((0.1, 5, 500)))
                assert self.bench.get("/service")["version"]
            if self.bench.plane.next_job > JOBS_AT_MOST:
                self._begin()

    def _call(self) -> Call:
        method, path, operation = self.random.choice(self.routes)
        query: list[tuple[str, str]] = []
        for parameter in operation.get("parameters", ()):
            name = parameter["name"]
            if parameter["in"] == "path":
                path = path.replace(f"{{{name}}}", self._path_part(name))
            elif self.random.random() < 0.5 and name != "wait_s":
                query.append((name, self._text()))
        return Call(method, f"/api/v1{path}", self._body(operation), urlencode(query))

    def _path_part(self, name: str) -> str:
        if name == "action" and self.random.random() < 0.9:
            return self.random.choice(("cancel", "pause", "resume"))
        known = [f"job-{self.random.randint(1, 50)}", "a", "team"]
        return self.random.choice(known) if self.random.random() < 0.7 else self._text().replace("/", "") or "x"

    def _text(self) -> str:
        return (
            str(self.random.choice([value for value in HOSTILE if not isinstance(value, int) or abs(value) < 10**80]))[
                :300
            ]
            .encode("utf-8", "replace")
            .decode()
        )

    def _body(self, operation: dict[str, Any]) -> Any:
        if "requestBody" not in operation:
            return None
        if self.random.random() < 0.05:
            return self.random.choice(HOSTILE)
        content = operation["requestBody"]["content"]["application/json"]["schema"]
        name = content.get("$ref", "/JobRequest").rpartition("/")[2]  # what changes a job has fields of one
        fields = sorted(JobRequest.model_fields if name == "JobRequest" else self.schemas[name]["properties"])
        body: dict[str, Any] = {"command": ["train"]} if name == "JobRequest" else {}
        for field in self.random.sample(fields, min(len(fields), self.random.randint(0, 4))):
            good = GOOD.get(field) if self.random.random() < 0.8 else None
            body[field] = self.random.choice(good or HOSTILE)
        return body
