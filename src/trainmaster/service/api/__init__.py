"""REST: routes, views, metrics, limits.

What a request does to the engine is in `service.control.requests`.
"""
