"""Where engine state survives: the store port and its implementations."""
