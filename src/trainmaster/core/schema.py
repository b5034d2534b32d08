"""The columns of job state: one list for arrays, snapshots, stored images and tests."""

from __future__ import annotations

INT_COLUMNS = (
    "submit_ms", "arrival", "workers_min", "workers_max", "servers_min", "servers_max", "workers_ref",
    "servers_ref", "devices_each", "share_milli", "worker_gpu_milli", "worker_cpu_milli", "worker_mem_mib",
    "server_cpu_milli", "server_mem_mib", "priority", "entity", "deadline_ms", "deadline_kind", "preemptible",
    "curve", "phase", "generation", "attempts", "failures", "preemptions", "held_type", "workers", "servers",
    "nodes_held", "first_start_ms", "as_of_ms", "productive_ms", "waiting_since_ms", "not_before_ms",
    "reason", "blocker", "admitted", "after_stop",
    "workers_ask", "servers_ask", "ask_gpu_milli", "held_gpu_milli",
    "max_attempts", "hidden", "pending_kind", "pending_seq", "pending_sent_ms", "pending_why", "last_seq", "number",
    "place", "node_set", "elastic", "touched", "reasoned",
)  # fmt: skip
"""`hidden`: policies do not see the job yet. `pending_*`: the command without an answer (kind 0: none), its number,
when it was last sent and why. `last_seq`: number of the last command for a live attempt. `number`: which job of a
trace it is (-1: none). `place`: where the job stands in the order of arrival. `node_set`: nodes that it may use, an
index into the masks of placement (0: all). `touched`: counts up when what the job is given or occupies is written.
`reasoned`: how many decisions had been made when `reason` and `blocker` were written."""
FLOAT_COLUMNS = ("work_total", "work_done", "work_saved", "rate", "service_gpu_s", "run_s", "weight", "budget", "cost")
NEW_JOB = {"held_type": -1, "first_start_ms": -1, "blocker": -1, "number": -1}
"""What a job that arrives has in the columns that its description does not fill, where that is not 0."""
