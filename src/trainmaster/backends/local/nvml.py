"""NVIDIA GPUs of this machine, asked of the driver's own library through ctypes: no package needed."""

from __future__ import annotations

import ctypes
import ctypes.util
from dataclasses import dataclass

_NAME_BYTES = 96
_UUID_BYTES = 96


@dataclass(frozen=True)
class Gpu:
    """`index` is by PCI bus, as CUDA counts under CUDA_DEVICE_ORDER=PCI_BUS_ID."""

    index: int
    name: str
    uuid: str
    memory_mib: int


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def find_gpus(library: str = "libnvidia-ml.so.1") -> list[Gpu]:
    """Empty when there is no driver, no library, or no GPU."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return []
    if nvml.nvmlInit_v2() != 0:
        return []
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return []
        found = [_gpu(nvml, index) for index in range(count.value)]
        return [gpu for gpu in found if gpu is not None]
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: ctypes.CDLL, index: int) -> Gpu | None:
    """None for a GPU that has fallen off the bus: it answers nothing."""
    handle = ctypes.c_void_p()
    name, uuid, memory = (
        ctypes.create_string_buffer(_NAME_BYTES),
        ctypes.create_string_buffer(_UUID_BYTES),
        _Memory(),
    )
    if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
        return None
    if nvml.nvmlDeviceGetName(handle, name, _NAME_BYTES) != 0:
        return None
    if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != 0:
        return None
    known = nvml.nvmlDeviceGetUUID(handle, uuid, _UUID_BYTES) == 0
    return Gpu(index, name.value.decode(), uuid.value.decode() if known else "", memory.total >> 20)
