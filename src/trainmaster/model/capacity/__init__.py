"""What is free and what fits: free capacity, packed allocations, sizes that could ever run.

`Allocation` as policies see it is in `model.allocation`; rules over arrays are in `core.state`.
"""
