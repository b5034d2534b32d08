"""Jobs as processes of this machine: a supervisor per attempt, and the backend that gives supervisors orders.

The supervisor's side (`supervisor` and what it imports) needs the standard library and `trainmaster.gang` only, so
that it starts fast and stays small.
"""
