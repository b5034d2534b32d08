cimport cython
from trainmaster.core.engine.engine_core cimport EngineCore
from trainmaster.core.state.job_arrays cimport JobArrays, take_index
from trainmaster.core.types cimport B2, F1, F2, I1, I2, i64

@cython.final
cdef class Arrivals:
    cdef public i64 n, next
    cdef public I1 submit_ms, int_row, int_columns, float_columns, now_columns
    cdef public F1 float_row
    cdef I2 ints
    cdef F2 floats, speed, speed_spread
    cdef B2 allowed
    cpdef object _constants(self, object columns, object order, object row)

@cython.locals(jobs=JobArrays, k=i64, i=i64, arrival=i64, place=i64, c=i64)
cpdef i64 submit(EngineCore e, Arrivals arrivals) except *
