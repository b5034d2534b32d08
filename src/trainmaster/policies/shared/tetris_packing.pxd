cimport cython
from trainmaster.core.int_list cimport new_floats, new_ints
from trainmaster.core.types cimport B1, F1, F2, I1, RB2, RF1, RF2, RI1, i64
from trainmaster.policies.shared.node_capacity cimport Room

@cython.final
cdef class Packing:
    cdef Room room
    cdef RI1 waiting, workers, servers
    cdef I1 on
    cdef RF2 share, throughput
    cdef F2 free
    cdef RF1 total
    cdef F1 alignment
    cdef RB2 allowed
    cdef B1 open
    @cython.locals(mean_alignment=double, top=Py_ssize_t, top_score=double, score=double, row=Py_ssize_t)
    cpdef Py_ssize_t order(self, RF1 work, double mean_work, double mix, I1 chosen) noexcept
    @cython.locals(total=double, n_open=Py_ssize_t, row=Py_ssize_t, best=Py_ssize_t)
    cdef double _align(self) noexcept
    @cython.locals(best=Py_ssize_t)
    cdef Py_ssize_t _fastest(self, Py_ssize_t row) noexcept
