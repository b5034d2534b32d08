"""Imports point one way; model, policies and engine are pure; the tree names no machine."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "trainmaster"

ALLOWED = {
    "core": {"core"},
    "model": {"core", "model"},
    "estimate": {"core", "model", "estimate"},
    "policies": {"core", "model", "estimate", "policies"},
    "engine": {"core", "model", "engine"},
    "stores": {"model", "engine", "stores"},
    "jobspec": {"model", "jobspec"},
    "client": {"model", "jobspec", "backends", "client"},
    "backends": {"model", "engine", "stores", "backends", "gang", "launcher", "jobspec"},
    "gang": {"gang", "model"},
    "launcher": {"model", "gang", "launcher"},
    "sim": {"core", "model", "estimate", "policies", "engine", "stores", "traces", "sim"},
    "traces": {"model", "estimate", "traces"},
    "wire": {"model", "wire", "jobspec"},
    "runtime": {"runtime", "model", "gang"},
    "service": {
        "jobspec",
        "gang",
        "model",
        "estimate",
        "policies",
        "engine",
        "stores",
        "backends",
        "sim",
        "wire",
        "service",
        "report",
        "forecast",
        "learn",
    },
    "forecast": {"core", "model", "estimate", "policies", "engine", "sim", "stores", "forecast"},
    "learn": {"core", "model", "estimate", "policies", "engine", "sim", "traces", "learn"},
}
"""What each package may import; `cli` and `report` may import anything but what is `ONLY_FOR_TESTS`."""

ONLY_FOR_TESTS = {"dst": {"dst"}, "testing": {"dst", "testing"}}
"""Packages that nothing in production imports, and who may."""

MAY_READ_COLUMNS = {"core", "model", "engine", "policies", "sim", "learn", "dst", "testing"}
"""Packages that see the engine's arrays; others ask `engine.queries`."""
ENGINE_INTERNALS = {
    "job_index_of",
    "int_block",
    "float_block",
    "ints",
    "floats",
    "throughput_spread",
    "outstanding",
    "last_seq",
    "planned",
    "physical",
    "held",
    "gated",
    "reserved",
    "doubts",
}
MAY_CALL_OF_ENGINE = {
    "engine",
    "fork",
    "grow",
    "lifecycle",
    "persistence",
    "ports",
    "queries",
    "records",
    "remap_nodes",
}

PURE = ("core", "model", "policies", "engine")
FORBIDDEN_MODULES = {
    "time",
    "random",
    "uuid",
    "asyncio",
    "secrets",
    "socket",
    "subprocess",
    "threading",
    "requests",
}
FORBIDDEN_CALLS = {
    "os.environ",
    "os.getenv",
    "os.urandom",
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
    "date.today",
}
MAY_READ_ENVIRONMENT = {"core/build_form.py"}
"""Whether the compiled form is wanted, once at import."""
MAY_READ_CPU_CLOCK = {"policies/gavel/instance.py", "policies/oasis/instance/solve.py"}
"""`solve_cpu_s` of a solved instance: a default argument `cpu_clock`, never read by `decide`."""


def _files(package: str) -> list[Path]:
    return sorted((SOURCE / package).rglob("*.py"))


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _imports(tree: ast.AST) -> list[tuple[str, int, bool]]:
    """(module, line, only for type checking) of every import."""
    guarded: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            guarded |= {id(child) for statement in node.body for child in ast.walk(statement)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno, id(node) in guarded) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.module, node.lineno, id(node) in guarded))
            if node.module in ("trainmaster", "trainmaster.engine"):
                found += [(f"{node.module}.{alias.name}", node.lineno, id(node) in guarded) for alias in node.names]
    return found


def test_every_package_has_a_rule() -> None:
    packages = {path.name for path in SOURCE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert packages <= set(ALLOWED) | {"cli", "report", "testing", "data", "dst"}


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_point_one_way(package: str) -> None:
    wrong = []
    for path in _files(package):
        for module, line, typing_only in _imports(_tree(path)):
            parts = module.split(".")
            if parts[0] != "trainmaster" or len(parts) < 2 or typing_only:
                continue
            if parts[1] not in ALLOWED[package] and (SOURCE / parts[1]).is_dir():
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_engine_state_is_read_through_queries() -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        package = name.split("/")[0]
        if package in MAY_READ_COLUMNS or "engine" not in ALLOWED.get(package, {"engine"}):
            continue
        tree = _tree(path)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute):
                continue
            text = ast.unparse(node)
            of_engine = re.fullmatch(r"(?:.*\.)?_?(?:engine|live)\.columns", text)
            if of_engine or (node.attr in ENGINE_INTERNALS):
                wrong.append(f"{name}:{node.lineno} reads {text}")
        for module, line, _ in _imports(tree):
            if module == "trainmaster.model.job_table" or (
                module.startswith("trainmaster.engine.") and module.split(".")[2] not in MAY_CALL_OF_ENGINE
            ):
                wrong.append(f"{name}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", sorted(ONLY_FOR_TESTS))
def test_production_imports_neither_fault_simulation_nor_test_code(package: str) -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).parts[0] in ONLY_FOR_TESTS[package]:
            continue
        for module, line, _ in _imports(_tree(path)):
            if module.split(".")[:2] == ["trainmaster", package] or module.split(".")[0] == "support":
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", PURE)
def test_pure_packages_read_no_clock_environment_or_global_random(package: str) -> None:
    wrong = []
    for path in _files(package):
        name = path.relative_to(SOURCE).as_posix()
        tree = _tree(path)
        for module, line, _ in _imports(tree):
            top = module.split(".")[0]
            if top in FORBIDDEN_MODULES and not (top == "time" and name in MAY_READ_CPU_CLOCK):
                wrong.append(f"{name}:{line} imports {module}")
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute):
                continue
            text = ast.unparse(node)
            if name not in MAY_READ_ENVIRONMENT and any(text.endswith(call) for call in FORBIDDEN_CALLS):
                wrong.append(f"{name}:{node.lineno} uses {text}")
            module = ast.unparse(node.value)
            if module in ("np.random", "numpy.random") and node.attr not in ("Generator", "PCG64"):
                wrong.append(f"{name}:{node.lineno} uses {text}")
    assert not wrong, "\n".join(wrong)


def test_decisions_never_read_the_cpu_clock() -> None:
    """In the two files that may import `time`, it is only ever the default of a parameter `cpu_clock`."""
    for name in sorted(MAY_READ_CPU_CLOCK):
        path = SOURCE / name
        tree = _tree(path)
        defaults: set[int] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                pairs = [*zip(reversed(node.args.args), reversed(node.args.defaults), strict=False)]
                pairs += [
                    (a, d) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d is not None
                ]
                defaults |= {
                    id(child) for arg, default in pairs if arg.arg == "cpu_clock" for child in ast.walk(default)
                }
        uses = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time"
        ]
        assert all(id(use) in defaults for use in uses), f"{name} uses time outside a cpu_clock default"


_MACHINE_PATHS = re.compile(r"(?<![\w./])/(?:work|tmp|home|root|Users)/\w")


def test_no_machine_paths_in_the_tree() -> None:
    wrong = []
    for folder in ("src", "tests", "docs", "bench", "examples", "deploy"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in {
                ".py",
                ".md",
                ".toml",
                ".yaml",
                ".yml",
                ".json",
                ".txt",
                ".cfg",
            } or path == Path(__file__):
                continue
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                if _MACHINE_PATHS.search(line):
                    wrong.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not wrong, "\n".join(wrong)
