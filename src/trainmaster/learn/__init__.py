"""Learning to schedule: environment, trainers, evaluation."""
