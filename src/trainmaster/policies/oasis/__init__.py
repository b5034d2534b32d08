"""OASiS (Bao et al., INFOCOM 2018): online admission, elastic worker/PS schedules, dual prices."""

from trainmaster.policies.oasis.policy import Oasis

__all__ = ["Oasis"]
