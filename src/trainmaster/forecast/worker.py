"""The process that looks ahead for a service: questions come in on standard input, one JSON object a line, and
outlooks go out on standard output. It runs at low priority and holds nothing between two lines.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, replace
from typing import Any

from trainmaster.forecast.forecast import Band, Outlook, forecast, widened
from trainmaster.forecast.worker_request import newcomers_of, situation_of
from trainmaster.model import event as ev
from trainmaster.model.errors import TrainmasterError

NICE = 10


def outlook_to_json(outlook: Outlook) -> dict[str, Any]:
    return asdict(outlook)


def outlook_from_json(data: dict[str, Any]) -> Outlook:
    def band(value: dict[str, float] | None) -> Band | None:
        return None if value is None else Band(**value)

    return Outlook(**{**data, "start": band(data["start"]), "finish": band(data["finish"])})


def answer(line: str) -> dict[str, Any]:
    """One question, one answer; what cannot be rolled is said, and the process goes on."""
    begun_s = time.process_time()
    try:
        asked = json.loads(line)
        situation = situation_of(asked)
        newcomers = newcomers_of(asked, situation.cluster)
        submitted = tuple(ev.JobSubmitted(replace(spec, submit_ms=situation.now_ms)) for spec in newcomers)
        outlooks = forecast(situation, events=submitted)
        if newcomers:
            outlooks = {spec.id: outlooks.get(spec.id, Outlook(None, None, "", False)) for spec in newcomers}
    except (TrainmasterError, AssertionError, ValueError, KeyError, IndexError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    widening = float(asked.get("widening", 1.0))
    return {
        "now_ms": situation.now_ms,
        "widening": widening,
        "cpu_s": time.process_time() - begun_s,
        "outlooks": {job_id: outlook_to_json(widened(outlook, widening)) for job_id, outlook in outlooks.items()},
    }


def main() -> None:
    os.nice(NICE)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(line), separators=(",", ":")) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
