cimport cython
cimport libc.math as math

ctypedef unsigned long long u64

cdef u64 MASK, _STEP, _FIRST, _SECOND

cpdef double floor_div(double a, double b) noexcept
@cython.locals(bits=u64)
cpdef u64 mixed(u64 key, u64 counter) noexcept
cpdef double uniform(u64 key, u64 counter) noexcept
cpdef double normal(u64 key, u64 counter) noexcept
cpdef double lucky(u64 key, u64 counter, double deviation) noexcept
