"""Arrays of the engine: jobs, free resources, packed allocations, plans, messages.

No rules: what may follow on what is in `core.engine`.
"""
