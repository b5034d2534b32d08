"""Training of DL2: demonstrations, episodes, reinforcement learning, evaluation.

The policy that decides from the weights is `policies.dl2`.
"""
