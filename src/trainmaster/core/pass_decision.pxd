cimport cython
from trainmaster.core.engine.engine_core cimport EngineCore, carry_out, launch_reserved
from trainmaster.core.state.job_arrays cimport JobArrays, close_gaps
from trainmaster.core.engine.decision_pass cimport Pass
from trainmaster.core.engine.placement cimport Placer
from trainmaster.core.state.plan_arrays cimport PlanArrays
from trainmaster.core.types cimport i64
from trainmaster.core.engine.verify cimport apply_changes

cdef i64 COUNT, SOUND, NOT_MADE

@cython.locals(jobs=JobArrays, rule=i64)
cpdef i64 decide_by(Pass decision, EngineCore e, Placer placer, PlanArrays plan) except? -2
