"""Choose a solver for a program and check its proof; a solve that cannot be certified is never silent."""

from __future__ import annotations

import numpy as np

from trainmaster.policies.gavel.general import solve_general
from trainmaster.policies.gavel.priced import solve_priced
from trainmaster.policies.gavel.problem import FloatArray
from trainmaster.policies.gavel.program import CERTIFIED_GAP, Program, Solution

SOLVERS = ("auto", "prices", "highs")


def solve_program(program: Program, solver: str = "auto") -> Solution:
    """Solve. `auto` searches prices where that applies and takes HiGHS where it proves no small gap."""
    return solve_warm(program, solver, None)[0]


def solve_warm(
    program: Program, solver: str = "auto", warm: FloatArray | None = None
) -> tuple[Solution, FloatArray | None]:
    """The solution and prices that shorten the next, similar solve (None: this one gave none)."""
    leveled_need = program.has_level and bool(np.any(program.need != 0.0))
    if solver == "highs" or program.pairs is not None or leveled_need:
        return solve_general(program), None
    solution, prices = solve_priced(program, warm)
    if solver == "prices" or is_certified(solution):
        return solution, prices
    second = solve_general(program)
    better = second.feasible and not (second.gap > solution.gap and solution.shortfall < 1e-9)
    return (second if better else solution), prices


def is_certified(solution: Solution) -> bool:
    return solution.feasible and solution.gap <= CERTIFIED_GAP and solution.shortfall <= 1e-9
