"""ETA bands and what-if: the live queue rolled forward in the simulator.

When the service asks for one is in `service.control.forecasts`.
"""
