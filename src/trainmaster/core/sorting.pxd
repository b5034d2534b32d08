from trainmaster.core.int_list cimport IntList
from trainmaster.core.types cimport F1, I1

cpdef void sort_by(IntList items, F1 key_of, IntList spare) noexcept
cdef void _merge(I1 source, Py_ssize_t begin, Py_ssize_t middle, Py_ssize_t end, F1 key_of, I1 spare) noexcept
