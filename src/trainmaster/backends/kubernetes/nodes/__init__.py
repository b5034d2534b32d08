"""Nodes: what they offer, what others use of them, which pods they accept."""
