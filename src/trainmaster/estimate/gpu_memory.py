"""GPU memory: what a job takes on each of its GPUs, and what a GPU of a type has. Unknown is None, never a guess."""

from __future__ import annotations

import re

from trainmaster.estimate.accelerators import find_accelerator
from trainmaster.estimate.catalogue import split_batch_size
from trainmaster.estimate.model_facts import find_model
from trainmaster.estimate.roofline import USABLE_MEMORY, training_memory_gb
from trainmaster.model.job import JobSpec

_IN_NAME = re.compile(r"(\d{1,4})GB\b", re.IGNORECASE)
"""Product names such as `Tesla-V100-SXM2-32GB` say it themselves."""
MIB_PER_GB = 1e9 / (1 << 20)
CONTEXT_MIB = 1024.0
"""What a process takes beside its tensors: the driver's context, kernels, the allocator's reserve."""


def needed_mib(spec: JobSpec, measured_mib: float | None = None) -> float | None:
    """On each GPU: the most of what it declares and what jobs alike were seen to take; else by the catalogue of models.
    The catalogue knows gangs only where each worker has one GPU."""
    said = [value for value in (spec.gpu_memory_mib, measured_mib) if value]
    if said:
        return float(max(said))
    base, named_batch = split_batch_size(spec.model)
    facts = find_model(base)
    if facts is None or spec.worker.devices != 1:
        return None
    tensors_gb = training_memory_gb(facts, spec.workers_ref, spec.batch_size or named_batch or facts.default_batch)
    return tensors_gb * MIB_PER_GB + CONTEXT_MIB


def device_mib(gpu_type: str) -> float | None:
    """Of one GPU, as far as programs can use it."""
    named = _IN_NAME.search(gpu_type)
    if named is not None:
        return float(named[1]) * MIB_PER_GB * USABLE_MEMORY
    device = find_accelerator(gpu_type)
    return None if device is None else device.memory_gb * MIB_PER_GB * USABLE_MEMORY
