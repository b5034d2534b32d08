"""What tests and benches share: oracles, kill loops, fork servers, the Kubernetes harness. See tests/README.md."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PYTHONPATH = f"{ROOT / 'src'}:{ROOT / 'tests/lib'}"
"""For processes that import `trainmaster` or `support`."""
