"""Policies by name: options parsed, converted and checked; mistakes explained."""

import re
from dataclasses import dataclass

import pytest

from trainmaster.model.errors import InputError
from trainmaster.model.plan import Plan
from trainmaster.model.policy import Policy
from trainmaster.model.snapshot import Snapshot
from trainmaster.policies import registry
from trainmaster.policies.attained import Tiresias
from trainmaster.policies.fifo import Fifo
from trainmaster.policies.optimus import Optimus

BASELINES = {"fifo", "sjf", "srtf", "las", "tiresias", "drf", "tetris", "optimus"}


def test_all_baselines_are_registered_and_described() -> None:
    known = {entry.name: entry for entry in registry.entries()}
    assert set(known) >= BASELINES
    for entry in known.values():
        assert entry.summary, f"{entry.name} has no summary"
        assert all(option.help for option in entry.options), f"{entry.name} has an option without help"
        assert isinstance(registry.create(entry.name), Policy)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("fifo", Fifo()),
        ("fifo:backfill=true", Fifo(backfill=True)),
        ("fifo: backfill = YES ", Fifo(backfill=True)),
        ("tiresias:thresholds_gpu_s=10/20.5,promote=0", Tiresias((10.0, 20.5), 0.0)),
        ("optimus:error=0.1,fitted=1,profile_points=5", Optimus(0.1, True, 5)),
    ],
)
def test_options_are_converted(text: str, policy: Policy) -> None:
    assert registry.create(text) == policy


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fifoo", "unknown policy 'fifoo'; expected one of .*Did you mean 'fifo'"),
        ("", "unknown policy ''"),
        ("fifo:speed=3", "policy 'fifo' has no option 'speed=3'; expected backfill=false"),
        ("fifo:backfill", "has no value"),
        ("fifo:backfill=maybe", "'backfill' of policy 'fifo' is 'maybe'; expected true or false"),
        ("fifo:backfill=true,backfill=false", "given twice"),
        ("sjf:x=1", "expected no options"),
        ("las:quantum_s=nan", "'quantum_s' of policy 'las' is 'nan'; expected a number"),
        ("las:quantum_s=-1", "expected a positive number"),
        ("tiresias:thresholds_gpu_s=3/2", "does not rise"),
        ("tiresias:thresholds_gpu_s=a/b", "expected numbers like 1/2/3"),
        ("optimus:error=1.5", "expected a fraction from 0 to below 1"),
        ("optimus:profile_points=2.5", "expected a whole number"),
        ("optimus:converged=0", "expected a positive number"),
        ("drf:patience_s=-5", "expected 0 or more"),
        ("tetris:mix=-1", "expected 0 or more"),
    ],
)
def test_mistakes_are_explained(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        registry.create(text)
    assert re.search(says, str(caught.value)), str(caught.value)


def test_a_name_belongs_to_one_policy() -> None:
    with pytest.raises(ValueError, match="two policies"):

        @registry.register("fifo")
        @dataclass(frozen=True)
        class Other:
            def decide(self, view: Snapshot) -> Plan:
                return view.draft().plan()
