"""The whole control plane, with HTTP and a database, in a simulated world."""
