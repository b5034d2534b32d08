"""The live service: the control plane around the engine, its driver, and the REST interface."""
