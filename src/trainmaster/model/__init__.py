"""The domain: jobs, clusters, allocations, snapshots, plans, events, commands and reasons."""
