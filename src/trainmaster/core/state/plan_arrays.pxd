cimport cython
from trainmaster.core.int_list cimport IntList
from trainmaster.core.state.job_arrays cimport JobArrays
from trainmaster.core.types cimport i64

@cython.final
cdef class PlanArrays:
    cdef public IntList jobs, first, flat, stated
    cdef public i64 default, blocker, wake_at_ms, broken, broken_part
    cpdef void clear(self) noexcept
    @cython.locals(at=Py_ssize_t)
    cpdef void insert(self, JobArrays jobs, i64 i, i64 first, i64 begin) noexcept
