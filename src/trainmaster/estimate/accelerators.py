"""Public specifications of accelerators. Peaks are dense (no sparsity), per device as schedulers count them.

`fp32_tflops` is the plain FP32 peak; `tf32_tflops` the one frameworks use for FP32 tensors where TF32 exists;
`mixed_tflops` the 16-bit matrix peak. `intra_gb_s` and `inter_gb_s` are what one device sends in one
direction to its neighbour in the node and what a node's network sends; the network is a typical cloud or pod
offer, not a property of the device. Sources name the vendor's document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Accelerator:
    name: str
    fp32_tflops: float
    tf32_tflops: float
    mixed_tflops: float
    memory_gb: float
    memory_gb_s: float
    intra_gb_s: float
    inter_gb_s: float
    launch_us: float  # host time to start one kernel, with the hosts of its time
    node_gpus: int
    source: str
    sustained: float = 1.0  # share of the peak clock that a power-capped card holds under load

    @property
    def speed(self) -> float:
        """For ratios of types: the geometric mean of compute and memory peaks, for training is bound by either."""
        return (self.tf32_tflops * self.sustained * self.memory_gb_s) ** 0.5


_ALL = (
    # one GK210 of the two on the board: that is what appears as a GPU
    Accelerator("k80", 2.8, 2.8, 2.8, 12, 240, 4, 1.25, 16, 8,
                "NVIDIA Tesla K80 board specification BD-07317 (half of the board, base clock); AWS p2", 0.7),
    Accelerator("p100", 9.3, 9.3, 18.7, 16, 732, 10, 1.25, 11, 4,
                "NVIDIA Tesla P100 PCIe datasheet; network: 10 Gb/s, GCP of the time"),
    Accelerator("p40", 11.76, 11.76, 11.76, 24, 346, 10, 1.25, 11, 4, "NVIDIA Tesla P40 datasheet"),
    Accelerator("v100", 15.7, 15.7, 125, 16, 900, 50, 1.25, 9, 8,
                "NVIDIA V100 datasheet (SXM2); network: AWS p3 10 Gb/s"),
    Accelerator("t4", 8.1, 8.1, 65, 16, 320, 6, 1.25, 10, 4,
                "NVIDIA T4 datasheet; network: one TCP flow of AWS g4dn, 10 Gb/s", 0.9),
    Accelerator("a100-40gb", 19.5, 156, 312, 40, 1555, 300, 50, 7, 8,
                "NVIDIA A100 datasheet; network: AWS p4d 400 Gb/s"),
    Accelerator("a100-80gb", 19.5, 156, 312, 80, 2039, 300, 50, 7, 8,
                "NVIDIA A100 datasheet; network: AWS p4de 400 Gb/s"),
    Accelerator("a10", 31.2, 62.5, 125, 24, 600, 25, 12.5, 7, 4,
                "NVIDIA A10 datasheet; network: 100 Gb/s"),
    Accelerator("l4", 30.3, 60, 121, 24, 300, 25, 12.5, 6, 8,
                "NVIDIA L4 datasheet (dense is half of the printed sparse figure); network: 100 Gb/s", 0.6),
    Accelerator("l40s", 91.6, 183, 362, 48, 864, 25, 50, 6, 8,
                "NVIDIA L40S datasheet; network: 400 Gb/s"),
    Accelerator("h100", 67, 494, 989, 80, 3350, 450, 400, 6, 8,
                "NVIDIA H100 SXM5 datasheet; network: 8 x 400 Gb/s"),
    Accelerator("h200", 67, 494, 989, 141, 4800, 450, 400, 6, 8,
                "NVIDIA H200 SXM datasheet; network: 8 x 400 Gb/s"),
    Accelerator("b200", 75, 1125, 2250, 180, 7700, 900, 400, 6, 8,
                "NVIDIA HGX B200 datasheet; network: 8 x 400 Gb/s"),
    # one of the two dies: that is what appears as a device
    Accelerator("mi250x", 23.9, 23.9, 191.5, 64, 1638, 100, 100, 7, 8,
                "AMD Instinct MI250X datasheet (half of the module); network: 4 x 200 Gb/s"),
    Accelerator("mi300x", 163.4, 653.7, 1307.4, 192, 5300, 448, 400, 7, 8,
                "AMD Instinct MI300X datasheet; network: 8 x 400 Gb/s"),
    Accelerator("tpu-v5e", 98.5, 98.5, 197, 16, 819, 50, 25, 6, 8,
                "Google Cloud TPU v5e documentation (FP32 through half-rate BF16 passes is an assumption)"),
    Accelerator("tpu-v5p", 229.5, 229.5, 459, 95, 2765, 100, 25, 6, 4,
                "Google Cloud TPU v5p documentation (FP32 rate is an assumption)"),
)  # fmt: skip

ACCELERATORS: dict[str, Accelerator] = {device.name: device for device in _ALL}

_ALIASES = {
    "a100": "a100-40gb",
    "a100-sxm4-40gb": "a100-40gb",
    "a100-sxm4-80gb": "a100-80gb",
    "v100m16": "v100",
    "v100m32": "v100",
    "tpuv5e": "tpu-v5e",
    "tpu-v5-lite": "tpu-v5e",
    "mi250": "mi250x",
}


def find_accelerator(name: str) -> Accelerator | None:
    """By the names clusters use: `V100`, `Tesla-V100-SXM2-16GB`, `NVIDIA-H100-80GB-HBM3`, `a100-80gb`."""
    key = name.strip().lower().replace("_", "-").replace(" ", "-")
    for prefix in ("nvidia-", "tesla-", "amd-", "instinct-", "google-"):
        key = key.removeprefix(prefix)
    key = _ALIASES.get(key, key)
    if key in ACCELERATORS:
        return ACCELERATORS[key]
    if key.startswith("a100"):
        return ACCELERATORS["a100-80gb" if "80" in key else "a100-40gb"]
    parts = key.split("-")
    return ACCELERATORS.get(_ALIASES.get(parts[0], parts[0]))


def type_speeds(types: Sequence[str]) -> list[float]:
    """How fast each type is, V100 being 1; where a type is unknown, all are taken to be alike."""
    found = [find_accelerator(name) for name in types]
    usual = ACCELERATORS["v100"].speed
    return [1.0 if device is None or None in found else device.speed / usual for device in found]
