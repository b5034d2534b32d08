"""The launcher: starts a trainer's command in a pod under a lease, and ends it when the lease cannot be renewed.

It is put into pods as one file (`trainmaster.launcher.bundle`), so this package, and what it imports of
`trainmaster`, needs the standard library and Python 3.8 only.
"""
