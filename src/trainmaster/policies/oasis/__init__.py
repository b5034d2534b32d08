"""OASiS (Bao et al., INFOCOM 2018): online admission, elastic worker/PS schedules, dual prices."""

from trainmaster.policies.oasis.dorm import Dorm
from trainmaster.policies.oasis.policy import Oasis
from trainmaster.policies.oasis.rrh import RiskRewardHeuristic

__all__ = ["Dorm", "Oasis", "RiskRewardHeuristic"]
