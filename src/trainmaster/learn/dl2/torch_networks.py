"""The networks as PyTorch modules, for training; they export to the weights that NumPy decides from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from trainmaster.core.arrays import Singles
from trainmaster.policies.dl2.features import N_ACTION, N_GLOBAL, N_JOB
from trainmaster.policies.dl2.network import shapes

BARRED = -1e9


def _drawn(shape: tuple[int, ...]) -> Tensor:
    """Uniform, with the variance that keeps ReLU layers in scale (He et al., ICCV'15)."""
    bound = (6.0 / shape[0]) ** 0.5
    return torch.empty(shape).uniform_(-bound, bound)


class SharedActor(nn.Module):
    """`ScoringNetwork` with gradients: the same equations, the same names."""

    U: Tensor
    u: Tensor
    V: Tensor
    v: Tensor
    W: Tensor
    w: Tensor
    A: Tensor
    a: Tensor
    S: Tensor
    B: Tensor
    b: Tensor

    def __init__(self, hidden: int, context: int) -> None:
        super().__init__()
        self.kind = "shared"
        for name, shape in shapes(hidden, context).items():
            start = _drawn(shape) * (0.1 if name in "ABS" else 1.0) if len(shape) == 2 else torch.zeros(shape)
            setattr(self, name, nn.Parameter(start))

    def forward(self, rows: Tensor, owner: Tensor, counts: Tensor, globals_: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.relu(rows @ self.U + self.u)
        mean = torch.zeros(len(counts), h.shape[1]).index_add(0, owner, h) / counts[:, None]
        context = torch.relu(torch.cat([mean, globals_], dim=1) @ self.V + self.v)
        hidden = h.shape[1]
        z = torch.relu(h @ self.W[:hidden] + (context @ self.W[hidden:] + self.w)[owner])
        return z @ self.A + rows @ self.S + self.a, (context @ self.B + self.b)[:, 0]

    def export(self) -> dict[str, Singles]:
        return {name: value.detach().numpy().astype(np.float32).copy() for name, value in self.named_parameters()}


class WindowActor(nn.Module):
    """The paper's: two dense hidden layers over the features of the first J jobs, 3J + 1 outputs."""

    def __init__(self, hidden: int, window: int) -> None:
        super().__init__()
        self.kind = "window"
        self.window = window
        self.P = nn.Parameter(_drawn((window * N_JOB + N_GLOBAL, hidden)))
        self.p = nn.Parameter(torch.zeros(hidden))
        self.Q = nn.Parameter(_drawn((hidden, hidden)))
        self.q = nn.Parameter(torch.zeros(hidden))
        self.R = nn.Parameter(0.1 * _drawn((hidden, window * N_ACTION + 1)))
        self.r = nn.Parameter(torch.zeros(window * N_ACTION + 1))

    def forward(self, rows: Tensor, owner: Tensor, counts: Tensor, globals_: Tensor) -> tuple[Tensor, Tensor]:
        n, starts = len(counts), torch.cumsum(counts, 0) - counts
        place = torch.arange(len(rows)) - starts.long()[owner]
        inside = place < self.window
        grid = torch.zeros(n, self.window, N_JOB)
        grid[owner[inside], place[inside]] = rows[inside]
        x = torch.cat([grid.reshape(n, -1), globals_], dim=1)
        out = torch.relu(torch.relu(x @ self.P + self.p) @ self.Q + self.q) @ self.R + self.r
        scores = torch.full((len(rows), N_ACTION), BARRED)
        by_job = out[:, 1:].reshape(n, self.window, N_ACTION)
        scores[inside] = by_job[owner[inside], place[inside]]
        return scores, out[:, 0]

    def export(self) -> dict[str, Singles]:
        return {name: value.detach().numpy().astype(np.float32).copy() for name, value in self.named_parameters()}


class Critic(nn.Module):
    """Value of a state at the beginning of a slot: a sum over jobs, since jobs in the system add up."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.job = nn.Sequential(nn.Linear(N_JOB + N_GLOBAL, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.per_job = nn.Linear(hidden, 1)
        self.whole = nn.Sequential(nn.Linear(hidden + N_GLOBAL, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, rows: Tensor, owner: Tensor, counts: Tensor, globals_: Tensor) -> Tensor:
        h = self.job(torch.cat([rows, globals_[owner]], dim=1))
        zero = torch.zeros(len(counts), h.shape[1])
        mean = zero.index_add(0, owner, h) / counts[:, None]
        added = torch.zeros(len(counts), 1).index_add(0, owner, self.per_job(h))
        return (added + self.whole(torch.cat([mean, globals_], dim=1)))[:, 0]


def log_softmax(scores: Tensor, void: Tensor, allowed: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of every (job, action) and of stopping, over each decision's own jobs."""
    masked = torch.where(allowed, scores, torch.full_like(scores, BARRED))
    top = void.detach().scatter_reduce(0, owner, masked.detach().max(dim=1).values, "amax")
    total = torch.exp(void - top).index_add(0, owner, torch.exp(masked - top[owner][:, None]).sum(dim=1))
    log_total = top + torch.log(total)
    return masked - log_total[owner][:, None], void - log_total


def owners(starts: npt.NDArray[np.int64], n_rows: int) -> tuple[Tensor, Tensor]:
    """For each row its decision, and how many rows each decision has."""
    counts = np.diff(np.append(starts, n_rows))
    return torch.from_numpy(np.repeat(np.arange(len(starts)), counts)), torch.from_numpy(counts.astype(np.float32))
