"""What a policy remembers between decisions. It leaves in the plan and returns in the next snapshot.

`values` is JSON data. `columns` holds one number (or row of numbers) per job, aligned with the rows of
the snapshot; the engine realigns them when jobs come and go, and new jobs read zero.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class PolicyState:
    values: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, npt.NDArray[np.float64]] = field(default_factory=dict)

    def to_json(self) -> str:
        """Canonical text: equal memos give equal bytes."""
        columns = {name: np.asarray(column).tolist() for name, column in sorted(self.columns.items())}
        return json.dumps({"columns": columns, "values": self.values}, sort_keys=True, allow_nan=True)

    @classmethod
    def from_json(cls, text: str) -> PolicyState:
        data = json.loads(text)
        columns = {name: np.asarray(column, dtype=np.float64) for name, column in data["columns"].items()}
        return cls(values=data["values"], columns=columns)


EMPTY_POLICY_STATE = PolicyState()
