"""DAS: its world, its rivals, its training and its evaluation."""
