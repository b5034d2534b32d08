"""The Kubernetes backend, its journal and election against a simulated API server, kubelets and trainers."""
