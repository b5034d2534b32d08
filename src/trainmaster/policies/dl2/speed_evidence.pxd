cimport cython
cimport libc.math as math
from trainmaster.core.int_list cimport new_floats
from trainmaster.core.types cimport B1, F1, F2, F3, I1, i64
from trainmaster.policies.shared.speed_curves cimport SpeedCurves

cdef Py_ssize_t N_TERM, TURNS
cdef double FACTOR_TRUST

cpdef void terms(double w, double p, F1 out) noexcept
@cython.locals(t=F1, scaled=double, i=Py_ssize_t, k=Py_ssize_t)
cpdef void add_point(F2 evidence, double w, double p, double speed, double weight) noexcept
cpdef void move(F2 pool, F2 evidence, double before, double after) noexcept
@cython.locals(above=double, below=double)
cpdef double factor(F2 evidence, F1 curve) noexcept
@cython.locals(scale=F1, x=F1, trial=F1, passive=B1, top=double, best=double, slope=double, step=double,
               entering=Py_ssize_t, left=bint, some=bint, i=Py_ssize_t, k=Py_ssize_t)
cpdef void fit(F2 pool, F1 out) noexcept
@cython.locals(lower=F2, middle=F1, value=double, i=Py_ssize_t, k=Py_ssize_t, m=Py_ssize_t)
cdef void _solved(F2 pool, F1 scale, B1 passive, F1 out) noexcept
@cython.locals(now=double, j=Py_ssize_t, i=Py_ssize_t)
cpdef void settle(F2 pool, F3 evidence, F1 factors, I1 rows, Py_ssize_t n, F1 curve) noexcept
@cython.locals(curves=SpeedCurves, at_w=i64, at_p=i64, w=i64, p=i64, best=double, time=double, stride=i64, moved=bint,
               dw=i64, dp=i64)
cpdef tuple best_size(F1 curve, i64 w_least, i64 w_max, i64 p_least, i64 p_max)
cpdef i64 size_near(double best, i64 least, i64 most, double draw) noexcept
cpdef i64 drawn_part(i64 count) noexcept
@cython.locals(both=F2, curve=F1)
cpdef tuple likely_best(F2 pool, F2 own, i64 w_least, i64 w_max, i64 p_least, i64 p_max)
