"""Jobs as pods of a Kubernetes cluster: the backend, election and blobs; rooms for all else.

What is REST or status for users is in `service.kubernetes`.
"""
