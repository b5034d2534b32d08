"""Gavel: heterogeneity-aware time shares (Narayanan et al., OSDI 2020) and the baselines it is compared
with."""

from trainmaster.policies.gavel import policy as policy
