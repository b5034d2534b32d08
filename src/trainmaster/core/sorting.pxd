cimport cython
from trainmaster.core.int_list cimport IntList
from trainmaster.core.types cimport F1, I1, i64

cpdef void sort_by(IntList items, F1 key_of, IntList spare) noexcept
cpdef void sort_by_two(IntList items, F1 key_of, I1 tie_of, IntList spare) noexcept
@cython.locals(values=I1, n=Py_ssize_t, value=i64, at=Py_ssize_t, width=Py_ssize_t, middle=Py_ssize_t, end=Py_ssize_t)
cdef void _sort(IntList items, F1 key_of, I1 tie_of, IntList spare) noexcept
cdef bint _comes_first(i64 a, i64 b, F1 key_of, I1 tie_of) noexcept
@cython.locals(left=Py_ssize_t, right=Py_ssize_t, out=Py_ssize_t)
cdef void _merge(I1 source, Py_ssize_t begin, Py_ssize_t middle, Py_ssize_t end, F1 key_of, I1 tie_of, I1 spare) noexcept
