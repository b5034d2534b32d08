"""OASiS (Bao et al., INFOCOM 2018): online admission, elastic worker/PS schedules, dual prices."""

from trainmaster.policies.oasis.dorm_policy import Dorm
from trainmaster.policies.oasis.policy import Oasis
from trainmaster.policies.oasis.rrh_policy import RiskRewardHeuristic

__all__ = ["Dorm", "Oasis", "RiskRewardHeuristic"]
