"""The control plane and the thread that owns it: requests, event log, forecasts, changes of nodes."""
