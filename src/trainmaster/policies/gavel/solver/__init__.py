"""Choose a solver for a program and check its proof; a solve that cannot be certified is never silent."""

from __future__ import annotations

import numpy as np

from trainmaster.policies.gavel.solver.highs import solve_by_highs
from trainmaster.policies.gavel.solver.prices import solve_by_prices
from trainmaster.policies.gavel.solver.program import LinearProgram, Solution

SOLVERS = ("auto", "prices", "highs")


def solve_program(program: LinearProgram, solver: str = "auto") -> Solution:
    """Solve. `auto` searches prices where that applies and takes HiGHS where it proves no small gap."""
    leveled_need = program.has_level and bool(np.any(program.need != 0.0))
    if solver == "highs" or program.pairs is not None or leveled_need:
        return solve_by_highs(program)
    solution = solve_by_prices(program)
    if solver == "prices" or solution.is_certified:
        return solution
    second = solve_by_highs(program)
    better = second.feasible and not (second.gap > solution.gap and solution.shortfall < 1e-9)
    return second if better else solution
