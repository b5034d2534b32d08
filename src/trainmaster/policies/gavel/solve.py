"""Choose a solver for a program and check its proof; a solve that cannot be certified is never silent."""

from __future__ import annotations

from trainmaster.policies.gavel.general import solve_general
from trainmaster.policies.gavel.program import CERTIFIED_GAP, Program, Solution
from trainmaster.policies.gavel.structured import solve_structured

SOLVERS = ("auto", "structured", "highs")


def solve_program(program: Program, solver: str = "auto") -> Solution:
    """Solve. `auto` takes the structured method where it applies and HiGHS where that proves no small gap."""
    if solver == "highs" or program.pairs is not None:
        return solve_general(program)
    solution = solve_structured(program)
    if solver == "structured" or is_certified(solution):
        return solution
    second = solve_general(program)
    return (
        second
        if second.feasible and not (second.gap > solution.gap and solution.shortfall < 1e-9)
        else solution
    )


def is_certified(solution: Solution) -> bool:
    return solution.feasible and solution.gap <= CERTIFIED_GAP and solution.shortfall <= 1e-9
