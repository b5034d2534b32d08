"""Catalogue tables: Gavel's numbers come out as they stand; bad tables are refused with a place."""

from __future__ import annotations

import ast
import contextlib
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.estimate.catalogue import TableCatalogue, ThroughputCatalogue, load_catalogue
from trainmaster.estimate.catalogue_files import write_catalogue
from trainmaster.model.errors import InputError

OWN = (
    "model,batch_size,accelerator,gpus,placement,steps_per_s,source,other_model,other_batch_size,other_steps_per_s\n"
    "ResNet-50,64,V100,2,packed,7.5,measured,,,\n"
    "ResNet-50,64,v100,2,spread,6.5,estimated,,,\n"
    "A3C,,v100,1,,7,,,,\n"
    "A3C,,v100,1,,4,,ResNet-50,64,3\n"
)


def put(folder: Path, text: str) -> Path:
    path = folder / "table"
    path.write_text(text)
    return path


def test_own_table(tmp_path: Path) -> None:
    table = load_catalogue(put(tmp_path, OWN))
    assert isinstance(table, ThroughputCatalogue)
    assert table.types == ("v100",)
    assert table.models == ("A3C", "ResNet-50 (batch size 64)")
    assert table.steps_per_s("ResNet-50", 2, "V100", batch_size=64) == 7.5
    assert table.steps_per_s("ResNet-50 (batch size 64)", 2, "v100", spread=True) == 6.5
    assert table.steps_per_s("ResNet-50 (batch size 32)", 2, "v100", batch_size=64) == 7.5
    assert table.steps_per_s("ResNet-50", 4, "v100", batch_size=64) is None
    assert table.steps_per_s("A3C", 1, "v100", batch_size=4, spread=True) == 7
    assert table.pair_steps_per_s("A3C", 1, "ResNet-50 (batch size 64)", 1, "v100") == (4, 3)
    assert table.pair_steps_per_s("ResNet-50 (batch size 64)", 1, "A3C", 1, "v100") == (3, 4)
    assert table.origin("ResNet-50 (batch size 64)", 2, "v100", spread=True) == "estimated"


def test_own_table_round_trip_csv_and_json(tmp_path: Path) -> None:
    table = load_catalogue(put(tmp_path, OWN))
    assert isinstance(table, TableCatalogue)
    write_catalogue(table, tmp_path / "copy.csv")
    copy = load_catalogue(tmp_path / "copy.csv")
    assert isinstance(copy, TableCatalogue)
    assert copy.entries == table.entries
    rows = [{"model": "m", "accelerator": "t4", "gpus": 1, "steps_per_s": 2.5, "batch_size": None}]
    assert load_catalogue(put(tmp_path, json.dumps({"rows": rows}))).steps_per_s("m", 1, "t4") == 2.5


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("", 1, "model"),
        ("model,accelerator,gpus\nm,v,1\n", 1, "steps_per_s"),
        ("model,accelerator,gpus,steps_per_s,speed\nm,v,1,1,1\n", 1, "speed"),
        ("model,accelerator,gpus,steps_per_s\nm,v,1\n", 2, None),
        ("model,accelerator,gpus,steps_per_s\nm,v,1,-1\n", 2, "steps_per_s"),
        ("model,accelerator,gpus,steps_per_s\nm,v,1,nan\n", 2, "steps_per_s"),
        ("model,accelerator,gpus,steps_per_s\nm,v,1,1e9\n", 2, "steps_per_s"),
        ("model,accelerator,gpus,steps_per_s\nm,v,0,1\n", 2, "gpus"),
        ("model,accelerator,gpus,steps_per_s\n,v,1,1\n", 2, "model"),
        ("model,accelerator,gpus,steps_per_s,placement\nm,v,1,1,near\n", 2, "placement"),
        ("model,accelerator,gpus,steps_per_s\n", None, None),
        ('{"v100": {"(\'m\', 1)": {"null": "x"}}}', None, "v100 > ('m', 1) > null"),
        ('{"v100": {"(\'m\'": {"null": 1}}}', None, "v100"),
        ('{"v100": {"(\'m\', 1)": {"(\'n\', 1)": [1]}}}', None, "v100 > ('m', 1) > ('n', 1)"),
        ('{"v100": 3}', None, None),
        ('{"v100": ', 1, None),
    ],
)
def test_refusals(tmp_path: Path, text: str, line: int | None, column: str | None) -> None:
    path = put(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_catalogue(path)
    assert (caught.value.file, caught.value.line, caught.value.column) == (path, line, column)


@given(
    st.text(max_size=200)
    | st.recursive(
        st.none() | st.floats() | st.text(max_size=5),
        lambda c: (
            st.lists(c) | st.dictionaries(st.sampled_from(["rows", "v100", "('m', 1)", "null", "gpus", "model"]), c)
        ),
        max_leaves=8,
    ).map(json.dumps)
)
@settings(max_examples=150, deadline=None)
def test_any_text_gives_a_catalogue_or_an_input_error(text: str) -> None:
    with TemporaryDirectory() as folder, contextlib.suppress(InputError):
        path = Path(folder) / "t"
        path.write_text(text, errors="replace")
        load_catalogue(path)


@pytest.mark.parametrize("name", ["simulation", "physical_cluster"])
def test_gavel_tables_entry_by_entry(shared_data, name: str) -> None:
    path = shared_data(f"gavel/throughputs/{name}_throughputs.json")
    raw = json.loads(path.read_text())
    table = load_catalogue(path)
    assert table.types == ("k80", "p100", "v100")
    assert len(table.models) == 26
    for worker_type, rows in raw.items():
        accelerator, spread, _ = worker_type.partition("_unconsolidated")
        for key, row in rows.items():
            model, gpus = ast.literal_eval(key)
            assert table.steps_per_s(model, gpus, accelerator, spread=bool(spread)) == row["null"]
            for other, speeds in row.items():
                if other != "null" and not spread:
                    other_model, other_gpus = ast.literal_eval(other)
                    pair = table.pair_steps_per_s(model, gpus, other_model, other_gpus, accelerator)
                    assert pair == tuple(speeds)
    assert table.steps_per_s("ResNet-50 (batch size 128)", 2, "k80") == 0.0


def test_gavel_motivation_table_with_bare_names(shared_data) -> None:
    table = load_catalogue(shared_data("gavel/throughputs/motivation_oracle_throughputs.json"))
    assert table.steps_per_s("ResNet-18 (batch size 16)", 1, "p100") is not None
    assert table.pair_steps_per_s("A3C", 1, "CycleGAN", 1, "v100") is not None
