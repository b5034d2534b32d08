"""What stands between a policy and what is carried out: bands, gates, notices, idle GPUs offered to elastic jobs.

Verification of a plan is in `engine.verify`; the order in which these act is in `engine.engine`.
"""
