"""DAS: its world, its baselines, its training and its evaluation."""
