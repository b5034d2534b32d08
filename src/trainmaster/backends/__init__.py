"""What carries out commands on real machines: `local` and `kubernetes`.

The simulated backend is in `sim` and `core.sim`; the state machine of an attempt is in `gang`.
"""
