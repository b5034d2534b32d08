"""What every training run does: warm up, improve and validate to its last iteration, keep the best, resume."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

from trainmaster.core.arrays import Singles
from trainmaster.learn.run_folder import (
    check_same_options,
    check_same_sources,
    known_checkpoint,
    read_checkpoint,
    save_run,
)

Row = dict[str, float]


@dataclass
class TrainingRun(ABC):
    policy: ClassVar[str]
    unit: ClassVar[str]
    """Of completion times, in names too: `validation_min`."""
    sources: ClassVar[tuple[str, str]]
    """Where jobs come from: its name in a checkpoint, and the command's option for it."""
    networks: ClassVar[tuple[str, ...]]
    """Attributes whose state is kept; the first one is how a checkpoint of the policy is known."""
    columns: ClassVar[tuple[str, ...]]
    """Of `metrics.csv`."""

    options: Any
    _: KW_ONLY
    iteration: int = 0
    best_score: float = float("inf")
    best: dict[str, Singles] = field(default_factory=dict)
    history: list[Row] = field(default_factory=list)

    @abstractmethod
    def warm_up(self) -> Row: ...

    @abstractmethod
    def improve(self) -> Row:
        """One iteration."""

    @abstractmethod
    def validate(self) -> Row:
        """Figures on streams that are neither trained nor tested on; keeps the weights when they are the best."""

    @abstractmethod
    def described_sources(self) -> list[dict[str, str]]:
        """Where jobs come from, to tell whether a run resumes on the same."""

    @abstractmethod
    def weights_file(self, made_by: Mapping[str, Any]) -> bytes:
        """The best weights as the policy reads them."""

    def run(self, report: Callable[[Row], None] | None = None, save: Callable[[], None] | None = None) -> None:
        """To the end of the options' iterations, from wherever it stands; `save` is called after each validation."""
        o = self.options
        if self.iteration == 0 and not self.history:
            self._note({"iteration": 0.0, **self.warm_up(), **self.validate()}, report, save)
        while self.iteration < o.iterations:
            row = self.improve()
            due = self.iteration % o.validate_every == 0 or self.iteration == o.iterations
            self._note(row | self.validate() if due else row, report, save if due else None)

    def _note(self, row: Row, report: Callable[[Row], None] | None, save: Callable[[], None] | None) -> None:
        self.history.append(row)
        if report:
            report(row)
        if save:
            save()

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {
            "options": self.options.to_json(),
            self.sources[0]: self.described_sources(),
            "iteration": self.iteration,
            f"best_{self.unit}": self.best_score,
            "history": self.history,
            "best": {name: torch.from_numpy(value) for name, value in self.best.items()},
            **{name: getattr(self, name).state_dict() for name in self.networks},
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.iteration, self.best_score = state["iteration"], state[f"best_{self.unit}"]
        self.history = list(state["history"])
        self.best = {name: value.numpy() for name, value in state["best"].items()}
        for name in self.networks:
            getattr(self, name).load_state_dict(state[name])

    def save(self, folder: Path, command: str) -> None:
        """Checkpoint and best weights, each whole or not at all."""
        made_by = {
            "command": command,
            "options": self.options.to_json(),
            "iteration": self.iteration,
            f"validation_{self.unit}": round(self.best_score, 3),
        }
        save_run(folder, self.state(), self.weights_file(made_by))

    def resume(self, folder: Path) -> None:
        """Continue where the folder's checkpoint stands; its options and sources must be those of the run, but for its
        length."""
        state = read_checkpoint(folder, self.policy, self.networks[0])
        with known_checkpoint(folder, self.policy):
            check_same_options(type(self.options).from_json(state["options"]).to_json(), self.options.to_json(), folder)
            self.check_sources(state, folder)
            self.restore(state)

    def check_sources(self, state: Mapping[str, Any], folder: Path) -> None:
        name, option = self.sources
        check_same_sources(state.get(name), self.described_sources(), folder, option)
