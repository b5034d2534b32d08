"""Real clusters for tests: start one, break it, read what trainers recorded."""
