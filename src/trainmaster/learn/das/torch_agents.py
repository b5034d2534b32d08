"""The agents of `policies/das/network.py` in PyTorch, with gradients and padded batches; and the central critic."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from trainmaster.policies.das.network import VARIANTS, positions, shapes

CRITIC_FEATURES = 14
"""`Player._state`, and how far the backlog and the cost to come are from those of other episodes on the stream."""


class TorchAgents(nn.Module):
    """Parameters have the names and shapes of the arrays that are shipped."""

    def __init__(self, width: int, hidden: int, heads: int, variant: str, gain: float, seed: int) -> None:
        super().__init__()
        self.heads, self.width, self.variant = heads, width, variant
        self.communicates, self.models_speed = VARIANTS[variant]
        generator = torch.Generator().manual_seed(seed)
        self.p = nn.ParameterDict()
        for name, shape in shapes(width, hidden).items():
            if name in ("n1", "n2"):
                start = torch.ones(shape)
            elif name == "gain":
                start = torch.full(shape, gain)
            elif len(shape) == 2:
                start = torch.randn(shape, generator=generator) * (1.0 / shape[0]) ** 0.5
            elif name in ("wz", "p2"):
                start = torch.randn(shape, generator=generator) * 0.05
            else:
                start = torch.zeros(shape)
            self.p[name] = nn.Parameter(start)

    def scores(self, jobs: Tensor, machines: Tensor, real: Tensor, real_machines: Tensor) -> Tensor:
        """B x N scores; `real` marks rows that are no padding."""
        p = self.p
        s = torch.relu(jobs @ p["Wj"] + p["bj"])
        if self.communicates:
            each = torch.relu(machines @ p["Wc"] + p["bc"]) * real_machines[:, :, None]
            pooled = each.sum(dim=1) / real_machines.sum(dim=1, keepdim=True)
            f = torch.tanh(pooled @ p["Wf"] + p["bf"])[:, None, :].expand_as(s)
            delta = torch.sigmoid(torch.cat([s, f], dim=2) @ p["W3"] + p["b3"])
            s = delta * f + (1.0 - delta) * s
        h = s + torch.from_numpy(positions(jobs.shape[1], self.width))
        h = _norm(h + self._attend(h, real), p["n1"], p["m1"])
        z = _norm(h + torch.relu(h @ p["Wa"] + p["ba"]) @ p["Wb"] + p["bb"], p["n2"], p["m2"])
        return z @ p["wz"] + jobs @ p["ws"]

    def _attend(self, h: Tensor, real: Tensor) -> Tensor:
        b, n, d = h.shape
        q, k, v = (
            (h @ self.p[name]).reshape(b, n, self.heads, d // self.heads).transpose(1, 2) for name in ("Wq", "Wk", "Wv")
        )
        mask = real[:, None, None, :] > 0
        out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return out.transpose(1, 2).reshape(b, n, d) @ self.p["Wo"]

    def affinities(self, pairs: Tensor, log_speed: Tensor) -> Tensor:
        p = self.p
        out = torch.relu(pairs @ p["P1"] + p["p1"]) @ p["p2"] + pairs @ p["ps"]
        return out + p["gain"] * log_speed if self.models_speed else out

    def export(self) -> dict[str, npt.NDArray[np.float32]]:
        return {name: value.detach().numpy().astype(np.float32).copy() for name, value in self.p.items()}


class Critic(nn.Module):
    """Value of a state that only training sees; shared by both agents."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.net = nn.Sequential(
            nn.Linear(CRITIC_FEATURES, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
        )

    def forward(self, states: Tensor) -> Tensor:
        return self.net(states)[:, 0]


def _norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return nn.functional.layer_norm(x, (x.shape[-1],), scale, shift)
