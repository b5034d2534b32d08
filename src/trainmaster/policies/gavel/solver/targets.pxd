cimport cython
from trainmaster.core.int_list cimport new_floats
from trainmaster.core.types cimport B1, F1, I1

cdef class RisingTargets:
    cdef readonly Py_ssize_t n
    cpdef void at(self, double level, F1 target, F1 rate) noexcept

@cython.final
cdef class RationalTargets(RisingTargets):
    cdef F1 _numer, _denom, _delay

@cython.final
cdef class TreeTargets(RisingTargets):
    cdef I1 _start, _child
    cdef B1 _fifo
    cdef Py_ssize_t _nodes
    cdef F1 _weight, _room, _before, _open_weight, _base, _unit, _amount, _growth
    cdef double _common, _per_weight
    @cython.locals(got=double, growing=double, wanted=double, room=double, child=Py_ssize_t, low=Py_ssize_t, high=Py_ssize_t, fifo=bint, served=bint)
    cdef void _divide(self, double level, F1 received, F1 rate) noexcept
    @cython.locals(first=Py_ssize_t, last=Py_ssize_t, middle=Py_ssize_t)
    cdef void _find_common(self, Py_ssize_t low, Py_ssize_t high, double amount, double growth) noexcept
