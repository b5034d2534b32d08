"""The control plane: engine, store and backend as one, on one thread.

No HTTP: that is `service.api`.
"""
