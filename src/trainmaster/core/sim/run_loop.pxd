cimport cython
from trainmaster.core.sim.arrivals cimport Arrivals, submit
from trainmaster.core.engine.engine_core cimport (
    EngineCore, decision_is_due, end_backoffs, exited, is_current, launch_reserved, next_wake_ms, progressed,
    resend, resized, start_failed, started, stopped,
)
from trainmaster.core.state.messages cimport Messages
from trainmaster.core.pass_decision cimport decide_by
from trainmaster.core.engine.decision_pass cimport Pass
from trainmaster.core.engine.placement cimport Placer
from trainmaster.core.state.plan_arrays cimport PlanArrays
from trainmaster.core.sim.backend cimport SimBackend
from trainmaster.core.types cimport i64

cdef i64 NEVER_MS, NOT_MADE, SOUND, EXITED, OTHER, PROGRESSED, RESIZED, START_FAILED, STARTED, STOPPED
cdef i64 AT_ADVANCE, AT_BACKOFFS, AT_BEGIN, AT_COMMANDS, AT_DECISION, AT_LEASES, AT_NEXT, AT_REPORTS, AT_RESEND, AT_SUBMIT
cdef i64 DECIDE, FAIL_NODES, HEARD, GATE, LEASES, OVER, PAUSED_RUN, REPORT, RESTLESS
cdef i64 SENT, SUBMIT

@cython.final
cdef class RunLoop:
    cdef public EngineCore e
    cdef public SimBackend backend
    cdef public Arrivals arrivals
    cdef public Pass decision
    cdef public Placer placer
    cdef public PlanArrays plan
    cdef public bint watched
    cdef public i64 now_ms, n_jobs, events, idle, still, report_at, stage, failure_ms, until_over, until_decided, steps_at_once_max, idle_max
    @cython.locals(e=EngineCore, backend=SimBackend, arrivals=Arrivals, upcoming_ms=i64, code=i64, number=i64, capacity=i64, due=bint)
    cpdef i64 go(self) except *
    @cython.locals(e=EngineCore, backend=SimBackend, arrivals=Arrivals, n_events=i64, k=i64)
    cdef i64 _advance(self) except *
    @cython.locals(rule=i64)
    cdef bint _decide(self) except *
    @cython.locals(commands=Messages)
    cdef void _perform(self) except *

@cython.locals(kind=i64, i=i64)
cpdef bint handle(EngineCore e, Messages rows, Py_ssize_t k) except *
