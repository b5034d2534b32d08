"""The service on a Kubernetes cluster: platform, access, jobs as objects, statuses, logs, forwarding to the leader."""
