cimport cython
from trainmaster.core.types cimport B1, F1, F2, I1, i64
from trainmaster.policies.deadline.reservations cimport JobArrays, Profile

cdef Py_ssize_t COUNT, FIRST
cdef i64 PROMISED
cdef double INFINITY

@cython.locals(order=I1, _=i64, done=Py_ssize_t, failed=i64, i=Py_ssize_t)
cpdef bint rearrange(Profile profile, JobArrays jobs, object rows, F1 due, F2 certs, i64 tries) except -1
@cython.locals(area=double, s=Py_ssize_t)
cdef double _area(F1 cert, i64 each) noexcept
@cython.locals(per_speed=double, fastest=double, c=Py_ssize_t, k=Py_ssize_t)
cdef double _least_area(JobArrays jobs, Py_ssize_t row) noexcept
@cython.locals(order=I1, size=Py_ssize_t, done=Py_ssize_t, failed=i64, victim=Py_ssize_t, largest=double, i=Py_ssize_t, row=Py_ssize_t, area=double)
cpdef bint keep_most(Profile profile, JobArrays jobs, object rows, F1 due, F2 certs, F1 worth, object dropped, i64 tries) except -1
