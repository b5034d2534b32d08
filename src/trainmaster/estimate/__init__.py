"""What we believe about jobs: throughput catalogue, scaling curves, online estimates."""
