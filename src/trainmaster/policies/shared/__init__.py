"""Parts that several policies share: sizes to plans, capacity, feasibility, fitted speeds.

No policy is registered here.
"""
