"""The core is compiled, from the sources that are here, and runs uncompiled too."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainmaster.core import build_form, int_list, sorting


@pytest.mark.skipif(build_form.runs_uncompiled(), reason="TRAINMASTER_PURE is set")
def test_the_core_is_compiled():
    assert sorting.__file__.endswith(".abi3.so"), "run `make setup`: the core is not compiled"
    assert build_form.form().startswith("compiled")


def test_the_same_source_runs_uncompiled():
    code = "from trainmaster.core import sorting, build_form; print(sorting.__file__, build_form.form())"
    environment = os.environ | {"TRAINMASTER_PURE": "1"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.split()[0].endswith("sorting.py")
    assert run.stdout.split()[1] == "uncompiled"


@pytest.mark.skipif(build_form.runs_uncompiled(), reason="TRAINMASTER_PURE is set")
def test_an_edited_source_is_not_shadowed_by_its_old_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "trainmaster"
    (package / "core").mkdir(parents=True)
    for suffix in (".py", ".pxd", ".abi3.so"):
        origin = Path(int_list.__file__).parent / f"int_list{suffix}"
        (package / "core" / origin.name).write_bytes(origin.read_bytes())
    built_from = build_form._fingerprint(package / "core" / "int_list.py", package / "core" / "int_list.pxd")
    record = {"bounds_checks": False, "modules": {"trainmaster.core.int_list": built_from}}
    (package / "_compiled.json").write_text(json.dumps(record))
    monkeypatch.setattr(build_form, "PACKAGE", package)
    monkeypatch.setattr(build_form, "RECORD", package / "_compiled.json")
    build_form.check_fresh()
    source = package / "core" / "int_list.py"
    source.write_text(source.read_text() + "\n# edited\n")
    with pytest.raises(build_form.StaleModule, match="run `make setup`"):
        build_form.check_fresh()
