"""Ten thousand random cases on every way in: none ends in an error that is not ours. `make fuzz` runs a million."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fuzz import SHARES, TARGETS
from support.rest_fuzz import Fuzz

CASES = 10_000


def test_no_request_ends_in_a_server_error(tmp_path: Path) -> None:
    fuzz = Fuzz(0, tmp_path)
    fuzz.run(round(CASES * SHARES["rest"]))
    assert {200, 201, 401, 403, 404, 409, 422} <= fuzz.statuses.keys(), "accepted and refused in every way"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SHARES.keys() - {"rest"}))
def test_no_other_way_in_ends_in_an_error_that_is_not_ours(name: str, tmp_path: Path) -> None:
    assert SHARES.keys() == TARGETS.keys() and sum(SHARES.values()) == pytest.approx(1.0)
    TARGETS[name](round(CASES * SHARES[name]), 0, tmp_path)
