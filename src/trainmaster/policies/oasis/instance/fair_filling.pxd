cimport cython
cimport libc.math as math
from trainmaster.core.types cimport F1, F2, I1, I2, i64

cdef double DUST

@cython.final
cdef class FairFilling:
    cdef F2 capacity, free, worker, ps
    cdef I2 hosts
    cdef F1 worker_total, ps_total
    cdef I1 count, ps_count, active
    cdef public I2 on_workers, on_ps
    cdef public F1 share
    @cython.locals(jobs=Py_ssize_t, servers=Py_ssize_t, i=Py_ssize_t, chosen=Py_ssize_t, needed=double, grown=bint)
    cpdef object run(self, F2 worker, F2 ps, F1 ps_per_worker, I1 most)
    @cython.locals(at=Py_ssize_t, ps_at=Py_ssize_t, r=Py_ssize_t)
    cdef bint _add_worker(self, Py_ssize_t i, bint with_ps) noexcept
    @cython.locals(s=Py_ssize_t, r=Py_ssize_t, fits=bint)
    cdef Py_ssize_t _first_fit(self, Py_ssize_t role, F2 demand, Py_ssize_t i) noexcept
    @cython.locals(r=Py_ssize_t)
    cdef void _take(self, Py_ssize_t s, F2 demand, Py_ssize_t i, double sign) noexcept
