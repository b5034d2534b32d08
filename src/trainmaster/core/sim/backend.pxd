cimport cython
from trainmaster.core.arithmetic cimport lucky
from trainmaster.core.int_list cimport IntList
from trainmaster.core.state.packed_allocation cimport same_place
from trainmaster.core.sim.world cimport SimWorld, note_nodes
from trainmaster.core.types cimport i64

cdef i64 DUE_COLLAPSE, DUE_FINISH, DUE_MEASURED, DUE_OTHER, DUE_STARTED, DUE_STOPPED
cdef i64 HEAD, LAUNCH, NO_CODE, PART, RESIZED, START_FAILED, STARTED, STOP
cdef double MS_PER_S, NOT_MEASURED

@cython.final
cdef class SimBackend(SimWorld):
    cpdef i64 next_due_ms(self) noexcept
    cpdef void advance_rows(self, i64 now_ms) except *
    cdef void _happen(self, i64 kind, i64 a, i64 epoch, i64 number) except *
    cpdef i64 schedule_other(self, i64 at_ms) except *
    cdef void _schedule(self, i64 at_ms, i64 kind, i64 a) except *
    @cython.locals(before=i64)
    cpdef object arrived(self, i64 index, i64 job)
    @cython.locals(job=i64)
    cpdef void perform_row(self, i64 kind, i64 index, i64 generation, i64 seq, IntList packed, i64 at) except *
    @cython.locals(part=i64, node=i64, first=i64)
    cdef i64 _first_unreachable(self, IntList packed, i64 at) noexcept
    @cython.locals(present=i64, unreachable=i64, cost_ms=i64, a=i64, k=Py_ssize_t)
    cdef void _launch(self, i64 job, i64 generation, i64 seq, IntList packed, i64 at) except *
    @cython.locals(a=i64)
    cpdef void adopt(self, i64 job, i64 generation, IntList packed, i64 at, double work, i64 productive_ms) except *
    @cython.locals(present=i64, a=i64)
    cdef Py_ssize_t _begin(
        self, i64 job, i64 generation, IntList packed, i64 at, double work, i64 productive_ms) except -1
    @cython.locals(k=Py_ssize_t)
    cdef void _started(self, i64 a) except *
    cdef void _measured(self, i64 a) except *
    @cython.locals(a=i64, delay_ms=i64)
    cdef void _stop(self, i64 job, i64 generation) except *
    @cython.locals(job=i64, part=i64)
    cdef void _stopped(self, i64 a) except *
    @cython.locals(a=i64, k=Py_ssize_t)
    cdef void _resize(self, i64 job, i64 generation, i64 seq, IntList packed, i64 at) except *
    @cython.locals(moved=bint, cost_ms=i64, k=i64)
    cdef void _change_gang(self, i64 a, i64 seq, IntList packed, i64 at) except *
    @cython.locals(k=Py_ssize_t)
    cdef void _answer_again(self, i64 job, i64 generation) except *
    cpdef void set_power(self, i64 node, bint on) noexcept
    @cython.locals(k=i64)
    cpdef void set_link(self, i64 node, bint on) noexcept
    @cython.locals(k=i64)
    cpdef void replan_on(self, i64 node) except *
    @cython.locals(k=i64, a=i64, kept=i64)
    cpdef void end_members(self, i64 node) except *
    @cython.locals(job=i64, heard=bint)
    cdef void _finish(self, i64 a) except *
    @cython.locals(a=i64)
    cpdef bint crash_attempt(self, i64 job, i64 code) except *
    @cython.locals(heard=bint, job=i64, part=i64)
    cdef void _collapse(self, i64 a) except *
    @cython.locals(part=i64)
    cdef void _lose_members(self, i64 a, i64 node) except *
    cpdef bint is_reachable(self, i64 node) noexcept
    cpdef bint is_recorded(self, i64 job) noexcept
    cpdef void settle(self, i64 a) noexcept
