"""The built-in catalogue: training speed estimated from public specifications, labelled `estimated`.

One worker's step takes (Williams et al. 2009, with a fixed part per step)

    t = kernels * launch + host + max(3 * flops * batch / (peak * e_family), bytes / (bandwidth * e_memory))

(forward once, backward twice), and n data-parallel workers reduce their gradients by a ring
(Thakur et al. 2005; Patarasuk & Yuan 2009): 2 (n-1)/n * gradient_bytes / link + 2 (n-1) * latency, of which a
share of the backward pass hides. Speeds are mini-batches per second over all workers: n / t.
The efficiencies below were set by hand on measurements of single GPUs, and a few links after looking at
measurements of several; `docs/catalogue.md` says which, and how far off the estimates are.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster.estimate.accelerators import ACCELERATORS, Accelerator, find_accelerator
from trainmaster.estimate.catalogue import Origin, split_batch_size
from trainmaster.estimate.model_facts import MODELS, ModelFacts, find_model

# Share of the peak that large kernels of a family reach.
_EFFICIENCY = {"cnn": 0.44, "transformer": 0.30, "rnn": 0.16, "recommender": 0.30, "gan": 0.37, "rl": 0.30}
# Model FLOPs utilisation of well-tuned 16-bit training: PaLM reports 46 %, Megatron-LM 44-52 %.
_MIXED_EFFICIENCY = 0.42
# TF32 units are fed through FP32-sized traffic and reach a smaller share of their peak.
_TF32_FACTOR = 0.35
_MEMORY_EFFICIENCY = 0.70
# Each kept activation byte is written, read and its gradient written and read.
_PASSES_OVER_ACTIVATIONS = 4.0
_OVERLAP = 0.6  # share of the backward pass behind which reduction hides
_LINK_EFFICIENCY = 0.7
_INTRA_LATENCY_S = 10e-6
_INTER_LATENCY_S = 40e-6
_STATE_BYTES_PER_PARAMETER = 16.0  # weight, gradient and two moments in FP32
USABLE_MEMORY = 0.92


@dataclass(frozen=True)
class StepTime:
    """One synchronised step, by its parts, in seconds."""

    fixed_s: float
    compute_s: float
    exposed_reduction_s: float

    @property
    def total_s(self) -> float:
        return self.fixed_s + self.compute_s + self.exposed_reduction_s


class BuiltinCatalogue:
    """Estimates for every known model on every known accelerator; pairs are unknown."""

    name = "built-in (estimated)"

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(sorted(ACCELERATORS))

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(sorted(MODELS))

    def steps_per_s(
        self, model: str, gpus: int, accelerator: str, *, spread: bool = False, batch_size: int | None = None
    ) -> float | None:
        """`batch_size` is per GPU; without one the name's, else the model's usual one."""
        base, named_batch = split_batch_size(model)
        facts, device = find_model(base), find_accelerator(accelerator)
        if facts is None or device is None or gpus < 1:
            return None
        batch = batch_size or named_batch or facts.default_batch
        if not fits(facts, device, gpus, batch):
            return 0.0
        return gpus / step_time(facts, device, gpus, batch, spread=spread).total_s

    def pair_steps_per_s(
        self, model_a: str, gpus_a: int, model_b: str, gpus_b: int, accelerator: str
    ) -> tuple[float, float] | None:
        del model_a, gpus_a, model_b, gpus_b, accelerator
        return None

    def origin(self, model: str, gpus: int, accelerator: str, *, spread: bool = False) -> Origin | None:
        speed = self.steps_per_s(model, gpus, accelerator, spread=spread)
        return None if speed is None else "estimated"


def training_memory_gb(facts: ModelFacts, gpus: int, batch: int) -> float:
    """Parameters, gradients, optimizer state (divided when sharded) and activations, on each GPU."""
    state_gb = facts.parameters_m * 1e6 * _STATE_BYTES_PER_PARAMETER / 1e9
    if facts.sharded:
        state_gb /= gpus
    return state_gb + facts.activation_mb * batch / 1e3 * (0.5 if facts.mixed else 1.0)


def fits(facts: ModelFacts, device: Accelerator, gpus: int, batch: int) -> bool:
    """Within what of the memory programs can use."""
    return training_memory_gb(facts, gpus, batch) <= device.memory_gb * USABLE_MEMORY


def step_time(facts: ModelFacts, device: Accelerator, gpus: int, batch: int, *, spread: bool) -> StepTime:
    fixed_s = facts.kernels * device.launch_us * 1e-6
    fixed_s += (facts.step_host_ms + facts.host_ms * batch) * 1e-3
    peak = _peak_flops(facts, device)
    arithmetic_s = 3.0 * facts.forward_gflops * 1e9 * batch / peak
    moved = facts.activation_mb * 1e6 * batch * _PASSES_OVER_ACTIVATIONS * (0.5 if facts.mixed else 1.0)
    moved += facts.parameters_m * 1e6 * _STATE_BYTES_PER_PARAMETER * 1.5
    memory_s = moved / (device.memory_gb_s * 1e9 * _MEMORY_EFFICIENCY)
    compute_s = max(arithmetic_s, memory_s)
    # Kernels are started while earlier ones run: only what compute does not cover counts.
    launch_s = max(0.0, facts.kernels * device.launch_us * 1e-6 - compute_s)
    fixed_s += launch_s - facts.kernels * device.launch_us * 1e-6
    reduction_s = reduction_time_s(facts, device, gpus, spread=spread)
    hidden_s = _OVERLAP * (compute_s + launch_s) * 2.0 / 3.0
    return StepTime(fixed_s, compute_s, max(0.0, reduction_s - hidden_s))


def reduction_time_s(facts: ModelFacts, device: Accelerator, gpus: int, *, spread: bool) -> float:
    """Ring all-reduce of the gradients; sharded models also gather their weights (half as much again)."""
    if gpus < 2:
        return 0.0
    crosses_nodes = spread or gpus > device.node_gpus
    link = (device.inter_gb_s if crosses_nodes else device.intra_gb_s) * 1e9 * _LINK_EFFICIENCY
    latency_s = _INTER_LATENCY_S if crosses_nodes else _INTRA_LATENCY_S
    gradient_bytes = facts.parameters_m * 1e6 * (2.0 if facts.mixed else 4.0) * (1.5 if facts.sharded else 1.0)
    return 2.0 * (gpus - 1) / gpus * gradient_bytes / link + 2.0 * (gpus - 1) * latency_s


def _peak_flops(facts: ModelFacts, device: Accelerator) -> float:
    efficiency = _EFFICIENCY[facts.family] * device.sustained
    if facts.mixed:
        matrix = device.mixed_tflops * _MIXED_EFFICIENCY * device.sustained
        return max(matrix, device.fp32_tflops * efficiency) * 1e12
    if device.tf32_tflops > device.fp32_tflops:
        return max(device.tf32_tflops * _TF32_FACTOR, device.fp32_tflops) * 1e12 * efficiency
    return device.fp32_tflops * 1e12 * efficiency
