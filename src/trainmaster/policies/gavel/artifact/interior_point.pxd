cimport cython
from libc cimport math
from trainmaster.core.int_list cimport new_floats
from trainmaster.core.types cimport F1, F2

cdef Py_ssize_t ITERATIONS_MAX, EQUILIBRATIONS, REFINEMENTS
cdef double TOLERANCE, STEP, STEP_MAX, CENTRING_MIN, REFINED, PIVOT_MIN, CLOSE_ENOUGH

@cython.final
cdef class NormalEquations:
    cdef readonly Py_ssize_t n, types, first_room, first_time, first_gain, full, count
    cdef readonly bint with_level
    cdef readonly F2 own, time, gain, room, column
    cdef readonly F1 level, row, w
    cdef readonly double of_level
    cdef F2 _blocks, _pull, _small, _total, _more
    cdef F1 _vector, _part, _work
    @cython.locals(a=double, b=double, c=double, d=double, t=double, tall_level=double)
    cdef void _equilibrate(self, F2 tall, F1 wide) noexcept
    @cython.locals(total=double, gained=double, v=double)
    cdef void times(self, F2 x, double u, F1 out) noexcept
    @cython.locals(at_level=double, yt=double, yg=double)
    cdef double transposed(self, F1 y, F2 out) noexcept
    @cython.locals(wg=double, grown=double, left=double, factor=double)
    cdef void factor(self) noexcept
    @cython.locals(value=double, least=double, wt=double)
    cdef void _cholesky(self, Py_ssize_t m, double wg) noexcept
    cdef void _back(self, Py_ssize_t m) noexcept
    @cython.locals(u=double)
    cdef double _solve_blocks(self, double at_level, F2 x) noexcept
    @cython.locals(u=double, first=double, at_level=double, error=double, step=double)
    cdef double solve(self, double scale, F2 right, double right_level, F1 rows, F2 x, F1 z) noexcept

@cython.final
cdef class CentralPath:
    cdef NormalEquations _normal
    cdef Py_ssize_t _count
    cdef readonly F2 found
    cdef F2 _c, _minus_c, _x, _x1, _x2, _rx
    cdef F1 _h, _s, _z, _z1, _z2, _ds, _dz, _rz, _rows, _gx, _root, _scale
    cdef double _c_level, _tau, _kappa, _u, _rx_level, _rx_size, _cx, _x_size, _gap, _hz, _rt
    @cython.locals(c_size=double, h_size=double, primal=double, dual=double, gap=double, worth=double, tau=double, close=bint)
    cpdef bint follow(self) noexcept
    cdef void _start(self) noexcept
    cdef void _zero(self, F2 x) noexcept
    @cython.locals(shift=double)
    cdef void _into_cone(self, F1 r, F1 out) noexcept
    @cython.locals(rx_size=double, cx=double, x_size=double, gap=double, hz=double, tau=double)
    cdef void _residuals(self) noexcept
    @cython.locals(mu=double, u1=double, u2=double, below=double, sigma=double, both=double, part=double, dtau=double, dkappa=double, due=double, length=double, left=double, tau=double, kappa=double)
    cdef void _step(self) noexcept
    @cython.locals(lowest=double, length=double)
    cdef double _step_length(self, double dtau, double dkappa) noexcept
    cdef void _keep(self) noexcept
    cdef bint _is_finite(self) noexcept
    @cython.locals(total=double)
    cdef double _dot(self, F2 a, F2 b) noexcept
    @cython.locals(total=double)
    cdef double _norm(self, F1 values) noexcept
