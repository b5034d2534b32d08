cimport cython
from trainmaster.core.types cimport B1, F1, F2, I1

cdef double INF

@cython.final
cdef class Matching:
    cdef readonly I1 owner
    cdef F2 _cost
    cdef F1 _row_price, _column_price, _distance
    cdef I1 _came_from
    cdef B1 _done
    cdef Py_ssize_t _columns
    @cython.locals(last=Py_ssize_t, reach=double)
    cpdef void insert(self, Py_ssize_t root) noexcept
    @cython.locals(row=Py_ssize_t, last=Py_ssize_t, nearest=Py_ssize_t, reach=double, best=double, through=double)
    cdef Py_ssize_t _shortest_path(self, Py_ssize_t root) noexcept
