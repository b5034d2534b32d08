"""Access to the API server: client, credentials, watches, paths of objects.

No knowledge of jobs or pods.
"""
