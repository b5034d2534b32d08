cimport cython
from trainmaster.core.int_list cimport new_floats, new_ints
from trainmaster.core.types cimport F1, F2, I1

cdef Py_ssize_t PIVOTS_MAX, STALL_PIVOTS
cdef double REDUCED_COST, PIVOT, NEGLIGIBLE, TIED

@cython.final
cdef class Game:
    cdef readonly Py_ssize_t rows
    cdef public Py_ssize_t count
    cdef readonly F2 columns
    cdef readonly I1 basis
    cdef readonly F1 row_weight, mix
    cdef F1 _primal, _dual
    cdef F2 _matrix, _inverse
    cdef void reset_basis(self) noexcept
    cpdef Py_ssize_t add(self, F1 column) noexcept
    @cython.locals(bland=bint, entering=Py_ssize_t, leaving=Py_ssize_t)
    cpdef double solve(self) noexcept
    cdef bint _factor(self) noexcept
    @cython.locals(kept=double, scale=double, factor=double, top=Py_ssize_t)
    cdef bint _invert(self) noexcept
    @cython.locals(best=double, worth=double, choice=Py_ssize_t)
    cdef Py_ssize_t _entering(self, bint bland) noexcept
    @cython.locals(slope=double, least=double, pivot=double, ratio=double, leaving=Py_ssize_t, tied=bint, better=bint)
    cdef Py_ssize_t _leaving(self, Py_ssize_t entering, bint bland) noexcept
    @cython.locals(weight_sum=double, column_sum=double)
    cdef void _normalise(self) noexcept
    @cython.locals(value=double, entry=double)
    cdef double _guaranteed(self) noexcept
