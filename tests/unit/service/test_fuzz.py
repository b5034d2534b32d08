"""Ten thousand random requests: each is answered, none with a server error. `make fuzz` runs a million."""

from __future__ import annotations

from pathlib import Path

from support.rest_fuzz import Fuzz


def test_no_request_ends_in_a_server_error(tmp_path: Path) -> None:
    fuzz = Fuzz(0, tmp_path)
    fuzz.run(10_000)
    assert {200, 201, 401, 403, 404, 409, 422} <= fuzz.statuses.keys(), "accepted and refused in every way"
