"""Jobs as pods of a Kubernetes cluster: the second real backend."""
