"""Looking ahead: a live queue rolled forward in the simulator, under its own policy or another."""
