"""REST, CRD and commands of version 0.1 still hold: what was there is there and means the same; additions are fine."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from service_bench import Bench

from trainmaster.backends.kubernetes.resources.crd import crd
from trainmaster.cli.main import app

Schema = dict[str, Any]


class Comparison:
    """Collects what an old schema has and a new one lacks. `$ref` is followed in both."""

    def __init__(self, old: Schema, new: Schema) -> None:
        self.old, self.new = old, new
        self.lost: list[str] = []

    def schema(self, old: Schema, new: Schema, where: str, sent: bool) -> None:
        """`sent`: by clients, so that nothing more may be required; else received by them."""
        old, new = _resolve(old, self.old), _resolve(new, self.new)
        self._same(_types(old, self.old) <= _types(new, self.new), f"{where}: type")
        self._same(set(old.get("enum", ())) <= set(new.get("enum", old.get("enum", ()))), f"{where}: enum")
        required = set(new.get("required", ())) if sent else set(old.get("required", ()))
        allowed = set(old.get("required", ())) if sent else set(new.get("required", ()))
        if sent or ".request" not in where:  # shown by the schema by which it is sent; see the test of its data
            self._same(required <= allowed, f"{where}: required {sorted(required - allowed)}")
        for name, inner in _properties(old, self.old).items():
            theirs = _properties(new, self.new).get(name)
            self._same(theirs is not None, f"{where}.{name}: removed")
            if theirs is not None:
                self.schema(inner, theirs, f"{where}.{name}", sent)
        if "items" in old:
            self.schema(old["items"], new.get("items", {}), f"{where}[]", sent)

    def operation(self, old: Schema, new: Schema, where: str) -> None:
        theirs = {(p["name"], p["in"]): p for p in new.get("parameters", ())}
        ours = {(p["name"], p["in"]) for p in old.get("parameters", ())}
        for parameter in old.get("parameters", ()):
            found = theirs.get((parameter["name"], parameter["in"]))
            self._same(found is not None, f"{where}?{parameter['name']}: removed")
            if found is not None:
                self.schema(parameter["schema"], found["schema"], f"{where}?{parameter['name']}", True)
        for name, place in theirs.keys() - ours:
            self._same(not theirs[name, place].get("required"), f"{where}?{name}: newly required")
        if "requestBody" in old:
            self.schema(_body(old["requestBody"]), _body(new.get("requestBody", {})), f"{where} body", True)
        for status, answer in old["responses"].items():
            if status != "422":
                self._same(status in new["responses"], f"{where}: answer {status}")
                self.schema(_body(answer), _body(new["responses"].get(status, {})), f"{where} {status}", False)

    def _same(self, holds: bool, what: str) -> None:
        if not holds:
            self.lost.append(what)


def _resolve(schema: Schema, document: Schema) -> Schema:
    while "$ref" in schema:
        found: Any = document
        for word in schema["$ref"].removeprefix("#/").split("/"):
            found = found[word]
        schema = found
    return schema


def _branches(schema: Schema, document: Schema) -> Iterator[Schema]:
    schema = _resolve(schema, document)
    inner = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]
    yield from [each for branch in inner for each in _branches(branch, document)] if inner else [schema]


def _types(schema: Schema, document: Schema) -> set[str]:
    return {branch["type"] for branch in _branches(schema, document) if "type" in branch}


def _properties(schema: Schema, document: Schema) -> Schema:
    return {name: each for branch in _branches(schema, document) for name, each in branch.get("properties", {}).items()}


def _body(part: Schema) -> Schema:
    return part.get("content", {}).get("application/json", {}).get("schema", {})


def lost_routes(old: Schema, new: Schema) -> list[str]:
    comparison = Comparison(old, new)
    for path, methods in old["paths"].items():
        for method, operation in methods.items():
            found = new["paths"].get(path, {}).get(method)
            if found is None:
                comparison.lost.append(f"{method} {path}: removed")
            else:
                comparison.operation(operation, found, f"{method} {path}")
    return comparison.lost


def openapi(folder: Path) -> Schema:
    inner: Any = Bench(folder).app
    while not hasattr(inner, "openapi"):
        inner = next(each for each in vars(inner).values() if hasattr(each, "openapi") or callable(each))
    return inner.openapi()


def test_rest(tmp_path: Path, pinned: Callable[[str], Any]) -> None:
    assert lost_routes(pinned("openapi"), openapi(tmp_path)) == []


def absent(schema: Schema, data: Any, document: Schema, where: str) -> Iterator[str]:
    """What the schema requires of the data, or knows of it, and the data lack."""
    schema = _resolve(schema, document)
    if isinstance(data, dict):
        known = schema.get("properties", {})
        for name in {*schema.get("required", ()), *(known if where == "request" else ())} - data.keys():
            yield f"{where}.{name}"
        for name in known.keys() & data.keys():
            yield from absent(known[name], data[name], document, f"{where}.{name}")


@pytest.mark.parametrize("servers", [None, {"min": 0, "max": 2}, {"min": 1, "max": 1}, {"max": 3}])
def test_the_request_of_a_job_is_shown_whole(
    servers: Schema | None, tmp_path: Path, pinned: Callable[[str], Any]
) -> None:
    old, bench = pinned("openapi"), Bench(tmp_path)
    job = bench.submit() if servers is None else bench.submit(servers=servers)
    shown = bench.get(f"/jobs/{job}")["request"]
    assert list(absent(old["components"]["schemas"]["JobRequest"], shown, old, "request")) == []


def crd_schema(definition: Schema) -> tuple[Schema, Schema]:
    (version,) = (each for each in definition["spec"]["versions"] if each["name"] == "v1alpha1")
    rest = {key: definition["spec"][key] for key in ("group", "scope", "names")}
    return rest | {"subresources": version["subresources"], "served": version["served"]}, version["schema"]


def lost_fields(old: Schema, new: Schema) -> list[str]:
    (ours, before), (theirs, now) = crd_schema(old), crd_schema(new)
    comparison = Comparison(before, now)
    comparison.schema(before["openAPIV3Schema"], now["openAPIV3Schema"], "TrainingJob", True)
    return comparison.lost + [key for key in ours if ours[key] != theirs[key]]


def test_crd(pinned: Callable[[str], Any]) -> None:
    assert lost_fields(pinned("crd"), crd()) == []


def options(text: str) -> dict[str, str]:
    """Option -> metavar, of `--help`: boxes of typer, lines of click."""
    found = {}
    for line in re.findall(r"^(?:\u2502 |  )(.*?)\u2502?$", text, re.MULTILINE):
        if match := re.match(r"[* ]*((?:-{1,2}[a-z][a-z0-9-]*[ ,/]*)+)\s*([A-Z][A-Z_.:=|, ]*[A-Z.]|<[^>]*>)?", line):
            for name in re.findall(r"-{1,2}[a-z][a-z0-9-]*", match[1]):
                found[name] = (match[2] or "").strip()
    return found


def help_of(command: str) -> str:
    runner = CliRunner(env={"COLUMNS": "300", "TERM": "dumb", "NO_COLOR": "1"})
    return runner.invoke(app, [*command.split(), "--help"]).output


def changed(old: str, new: str) -> list[str]:
    before, now = options(old), options(new)
    kinds = {"INTEGER", "FLOAT", "TEXT", "PATH", ""}
    return [
        f"{name} {metavar} -> {now.get(name, 'removed')}"
        for name, metavar in before.items()
        if name not in now or (metavar in kinds and now[name] in kinds and bool(metavar) != bool(now[name]))
    ]


def test_commands(pinned: Callable[[str], Any]) -> None:
    helps = pinned("commands")
    assert sum(len(options(text)) for text in helps.values()) > 200
    lost = {command: changed(text, help_of(command)) for command, text in helps.items()}
    assert {command: what for command, what in lost.items() if what} == {}


@pytest.mark.parametrize(("at", "value"), [("removed", None), ("type", "integer"), ("required", ["name"])])
def test_changes_of_the_crd_are_found(at: str, value: Any, pinned: Callable[[str], Any]) -> None:
    new = pinned("crd")
    spec = new["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    if at == "removed":
        del spec["properties"]["priority"]
    elif at == "type":
        spec["properties"]["deadlineKind"]["type"] = value
    else:
        spec["required"] = [*spec.get("required", ()), *value]
    assert lost_fields(pinned("crd"), new)


def test_changes_of_routes_and_options_are_found(pinned: Callable[[str], Any]) -> None:
    new = pinned("openapi")
    del new["components"]["schemas"]["JobView"]["properties"]["slack_s"]
    del new["paths"]["/api/v1/nodes"]
    assert {what.split(" ")[-1] for what in lost_routes(pinned("openapi"), new)} >= {"removed"}
    submit = pinned("commands")["submit"]
    assert changed(submit, submit) == []
    assert changed(submit, submit.replace("--gpus ", "--cards ")) != []
