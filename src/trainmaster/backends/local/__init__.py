"""Jobs as processes of this machine: a keeper per incarnation, and the backend that gives keepers orders.

The keeper's side (`keeper` and what it imports) needs the standard library, `trainmaster.gang` and
`trainmaster.gang.protocol` only, so that it starts fast and stays small.
"""
