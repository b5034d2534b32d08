cimport cython
from trainmaster.core.int_list cimport IntList
from trainmaster.core.types cimport i64

@cython.final
cdef class PlanArrays:
    cdef public IntList jobs, first, flat, misfits
    cdef public i64 blocker, wake_at_ms
    cpdef void clear(self) noexcept
