"""The engine and a store in a simulated world."""
