"""Compiles every module of `src/trainmaster` that has a `.pxd` file beside it, when a wheel or an editable
installation is built, or by `python hatch_build.py` (what `make setup` does when a source has changed).

TRAINMASTER_PURE=1 builds nothing: the same sources run uncompiled, and slowly. TRAINMASTER_BOUNDS=1 compiles with
bounds checks.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a script, without a build front end
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent
SUFFIX = ".abi3.so"
RECORD = "trainmaster/_compiled.json"
MACROS: list[tuple[str, str | None]] = [("Py_LIMITED_API", "0x030B0000"), ("CYTHON_LIMITED_API", "1")]
SHARED = "trainmaster.core._shared"
"""Code that every compiled module needs, once: memory views and the like."""
FLAGS = ["-O2", "-g0", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"]
NO_COMPILER = (
    "Trainmaster's core could not be compiled: {error}\n"
    "Install a C compiler (Debian: apt install gcc python3-dev), or set TRAINMASTER_PURE=1 to install the slow form."
)


def compiled_modules(source: Path) -> list[Path]:
    """The `.py` files to compile, relative to `source`: those with a `.pxd` of the same name."""
    found = [p.with_suffix(".py").relative_to(source) for p in source.glob("trainmaster/**/*.pxd")]
    return sorted(p for p in found if (source / p).exists() and p.stem != "__init__")


def fingerprint(source: Path, module: Path) -> str:
    """Changes with the module's code or types."""
    texts = (source / module).read_bytes() + (source / module.with_suffix(".pxd")).read_bytes()
    return hashlib.sha256(texts).hexdigest()[:16]


def is_pure() -> bool:
    return os.environ.get("TRAINMASTER_PURE", "") not in ("", "0")


def build(root: Path) -> list[Path]:
    """Compile in place what has changed; returns the extension modules."""
    source = root / "src"
    modules = compiled_modules(source)
    bounds = os.environ.get("TRAINMASTER_BOUNDS", "") not in ("", "0")
    remove_orphans(source, modules)
    try:
        compile_in_place(root, modules, bounds)
    except (Exception, SystemExit) as error:
        sys.exit(NO_COMPILER.format(error=error))
    record = {".".join(m.with_suffix("").parts): fingerprint(source, m) for m in modules}
    (source / RECORD).write_text(json.dumps({"bounds_checks": bounds, "modules": record}, indent=1) + "\n")
    return [source / m.with_suffix(SUFFIX) for m in modules]


def remove_orphans(source: Path, modules: list[Path]) -> None:
    """Extension modules whose source is gone, or is no longer compiled, must not be imported."""
    wanted = {source / m.with_suffix(SUFFIX) for m in [*modules, Path(*SHARED.split("."))] if modules}
    for path in source.glob(f"trainmaster/**/*{SUFFIX}"):
        if path not in wanted:
            path.unlink()


def compile_in_place(root: Path, modules: list[Path], bounds: bool) -> None:
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    directives = {
        "language_level": 3, "annotation_typing": False, "infer_types": True, "boundscheck": bounds,
        "wraparound": False, "initializedcheck": bounds, "cdivision": False,
    }  # fmt: skip
    way = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]  # another way of compiling, another folder
    folder = root / "build" / f"{'bounds' if bounds else 'fast'}-{way}"
    folder.mkdir(parents=True, exist_ok=True)
    extensions = [
        Extension(
            ".".join(m.with_suffix("").parts), [str(m)], extra_compile_args=FLAGS, py_limited_api=True,
            define_macros=MACROS,
        )
        for m in modules
    ]  # fmt: skip
    extensions.append(
        Extension(
            SHARED, [str(folder / "_shared.c")], extra_compile_args=FLAGS, py_limited_api=True, define_macros=MACROS
        )
    )
    before = Path.cwd()
    os.chdir(root / "src")
    try:
        made = cythonize(
            extensions, compiler_directives=directives, build_dir=str(folder), quiet=True, nthreads=os.cpu_count() or 1,
            show_all_warnings=False, shared_utility_qualified_name=SHARED,
        )  # fmt: skip
        command = build_ext(Distribution({"ext_modules": made, "package_dir": {"": "."}}))
        command.inplace, command.parallel = True, os.cpu_count()
        command.build_temp, command.build_lib = str(folder), str(folder / "lib")
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(before)


class CompiledCore(BuildHookInterface):
    """Hatchling's hook."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        if is_pure() or self.target_name != "wheel":
            return
        build(Path(self.root))
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform}"
        build_data["artifacts"] += [f"/src/trainmaster/**/*{SUFFIX}", f"/src/{RECORD}"]


if __name__ == "__main__":
    if is_pure():
        remove_orphans(ROOT / "src", [])
        (ROOT / "src" / RECORD).unlink(missing_ok=True)
    else:
        build(ROOT)
