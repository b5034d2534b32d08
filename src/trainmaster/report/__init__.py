"""Tables, plots and the HTML report.

Figures of one run are computed in `sim.metrics`.
"""
