cimport cython
from trainmaster.core.int_list cimport IntList
from trainmaster.core.types cimport B1, F1, F2, I1, I2, i64
from trainmaster.policies.oasis.instance.cost cimport F3, GangCosts

cdef double INFINITY

@cython.final
cdef class JointCosts:
    cdef GangCosts costs
    cdef B1 both
    cdef I1 shared
    @cython.locals(t=Py_ssize_t, j=Py_ssize_t, z=i64, options=i64, worst=i64)
    cpdef i64 operations(self, i64 most, i64 most_ps) noexcept
    @cython.locals(tables=F3, t=Py_ssize_t, d=Py_ssize_t, most=Py_ssize_t)
    cpdef object fill(self, I1 ps_needed, F2 out)
    @cython.locals(tables=F3, y=i64, z=i64, dy=i64, dz=i64, s=Py_ssize_t, j=Py_ssize_t, back=Py_ssize_t, extra=double, found=bint)
    cpdef object place(self, Py_ssize_t t, i64 workers, i64 ps, I1 on_workers, I1 on_ps)
    @cython.locals(j=Py_ssize_t, tables=F3)
    cdef F3 _tables(self, Py_ssize_t t, i64 most, i64 most_ps)
    @cython.locals(workers=F1, ps=F1, y=Py_ssize_t, z=Py_ssize_t)
    cdef object _start(self, Py_ssize_t t, F3 tables)
    @cython.locals(s=Py_ssize_t, most=i64, most_ps=i64, dy=i64, dz=i64, y=i64, z=i64, extra=double, value=double)
    cdef void _add_server(self, Py_ssize_t t, Py_ssize_t j, F3 tables) noexcept
    cdef i64 _ps_fit(self, Py_ssize_t t, Py_ssize_t s, i64 most) noexcept
    cdef i64 _workers_fit(self, Py_ssize_t t, Py_ssize_t s, i64 ps, i64 most) noexcept
    @cython.locals(count=Py_ssize_t, i=Py_ssize_t, s=Py_ssize_t, _=i64)
    cdef void _cheapest_prefix(self, IntList order, F2 cost, I2 room, Py_ssize_t t, F1 total) noexcept
    @cython.locals(i=Py_ssize_t, s=Py_ssize_t, here=i64)
    cdef void _fill_cheapest(self, IntList order, I2 room, Py_ssize_t t, i64 count, I1 taken) noexcept
