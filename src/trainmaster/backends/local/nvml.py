"""NVIDIA GPUs of this machine, asked of the driver by nvidia-ml-py."""

from __future__ import annotations

from dataclasses import dataclass


class NvmlFault(Exception):
    """The GPUs cannot be asked for; one sentence says why."""


@dataclass(frozen=True)
class Gpu:
    """`index` is by PCI bus, as CUDA counts under CUDA_DEVICE_ORDER=PCI_BUS_ID."""

    index: int
    name: str
    uuid: str
    memory_mib: int


def ask_gpus() -> list[Gpu] | None:
    """None when the driver's library is not there. A GPU that has fallen off the bus is left out."""
    try:
        import pynvml as nvml
    except ImportError:
        raise NvmlFault("the package nvidia-ml-py is not installed") from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:  # type: ignore[attr-defined]
            return None
        raise NvmlFault(f"NVML does not start: {error}") from None
    found = []
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                name, memory = nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetMemoryInfo(handle)
                uuid = nvml.nvmlDeviceGetUUID(handle)
            except nvml.NVMLError:
                continue
            found.append(Gpu(index, str(name), str(uuid), int(memory.total) >> 20))
    except nvml.NVMLError as error:
        raise NvmlFault(f"NVML does not count the GPUs: {error}") from None
    finally:
        nvml.nvmlShutdown()
    return found


def find_gpus() -> list[Gpu]:
    """Empty when there are none, or they cannot be asked for; `trainmaster doctor` says why."""
    try:
        return ask_gpus() or []
    except NvmlFault:
        return []
