"""A TrainingJob's status from what the service shows of a job: state, reason, conditions, and how kubectl prints it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trainmaster.backends.kubernetes.resources.crd import OVER
from trainmaster.backends.kubernetes.resources.training_job import stamp_of
from trainmaster.model.errors import InputError

Json = Mapping[str, Any]
Status = dict[str, Any]
MAX_MESSAGE = 1024
ETA_WAVERS, ETA_WAVERS_S = 0.2, 30.0
"""An estimate of so much another time, in parts of what is left and in seconds, is the same to its reader."""
MAX_PLACES = 64
"""Nodes that a status lists; a gang on more of them is summed up in `workers`."""


@dataclass(frozen=True)
class StatusUpdate:
    """A job at one moment: the view that clients see, and its attempt."""

    view: Json
    generation: int
    now_s: float


def status_of(tj: Json, update: StatusUpdate) -> Status:
    """The whole status. Times of conditions that stay as they were are kept from the object's present status."""
    view, now_s = update.view, update.now_s
    state = view["state"]
    places = view["allocation"]
    eta_s = view["eta_s"]
    workers = sum(place["workers"] for place in places)
    servers = sum(place["servers"] for place in places)
    fraction = 1.0 if state == "finished" else view["progress"]["fraction"]
    reason, message = _reason(view), clipped(_message(view, now_s))
    finish = None if eta_s is None else stamp_of(now_s + eta_s)
    status: Status = {
        "state": state,
        "reason": reason,
        "message": message,
        "allocation": {"workers": workers, "servers": servers, "places": _places(places)} if places else {},
        "progress": 0.0 if fraction is None else round(fraction, 4),
        "etaSeconds": None if eta_s is None else round(eta_s, 1),
        "expectedFinish": finish,
        "attempts": view["attempts"],
        "generation": update.generation,
        "observedGeneration": tj["metadata"].get("generation", 0),
        "id": view["id"],
        "startTime": None if view["started"] is None else stamp_of(view["started"]),
        "completionTime": None if view["ended"] is None else stamp_of(view["ended"]),
        "shown": {
            "workers": _of_range(view, workers),
            "type": ",".join(sorted({place["accelerator"] for place in places if place["workers"]})),
            "progress": "" if fraction is None else f"{math.floor(fraction * 100)}%",
            "eta": "" if finish is None else finish[:16].replace("T", " "),
        },
    }
    status["conditions"] = conditions_of(tj, state, reason, message, bool(places), stamp_of(now_s))
    return status


def rejected_status(tj: Json, error: InputError, now_s: float) -> Status:
    """Of an object that cannot be a job: the reason names the field."""
    message = clipped(str(error))
    return {
        "state": "rejected",
        "reason": "Invalid",
        "message": message,
        "allocation": {},
        "progress": 0.0,
        "etaSeconds": None,
        "attempts": 0,
        "generation": 0,
        "observedGeneration": tj["metadata"].get("generation", 0),
        "completionTime": stamp_of(now_s),
        "conditions": conditions_of(tj, "rejected", "Invalid", message, False, stamp_of(now_s)),
    }


def conditions_of(tj: Json, state: str, reason: str, message: str, placed: bool, now: str) -> list[Status]:
    """Accepted, Scheduled, Running, Complete and Failed, for `kubectl wait --for=condition=...`."""
    waits = reason if state in ("pending", "paused") else ""
    wanted = [
        ("Accepted", state != "rejected", reason if state == "rejected" else "Accepted"),
        ("Scheduled", placed, "Placed" if placed else waits or state.capitalize()),
        ("Running", state == "running", state.capitalize()),
        ("Complete", state == "finished", state.capitalize()),
        ("Failed", state in ("failed", "rejected"), state.capitalize()),
    ]
    before = {c.get("type"): c for c in (tj.get("status") or {}).get("conditions") or ()}
    generation = tj["metadata"].get("generation", 0)
    made: list[Status] = []
    for kind, true, why in wanted:
        value = "True" if true else "False"
        old = before.get(kind, {})
        since = old.get("lastTransitionTime", now) if old.get("status") == value else now
        told = message if (kind == "Scheduled" and not placed) or (kind in ("Accepted", "Failed") and message) else ""
        made.append(
            {
                "type": kind,
                "status": value,
                "reason": why or "Unknown",
                "message": told,
                "lastTransitionTime": since,
                "observedGeneration": generation,
            }
        )
    return made


def same_status(new: Json, old: Json) -> bool:
    """Whether writing would tell nothing new: times that merely passed do not count, nor estimates that waver."""
    if _essence(new) != _essence(old):
        return False
    finish, told = (_instant_s(status.get("expectedFinish")) for status in (new, old))
    return not is_news(finish, told, new.get("etaSeconds") or 0.0)


def is_news(finish_s: float | None, told_s: float | None, left_s: float) -> bool:
    """Whether an expected finish differs from the one that was told by as much as its reader would mind."""
    if finish_s is None or told_s is None:
        return finish_s is not told_s
    return abs(finish_s - told_s) > max(ETA_WAVERS_S, ETA_WAVERS * left_s)


def _instant_s(stamp: str | None) -> float | None:
    return None if stamp is None else datetime.fromisoformat(stamp).timestamp()


def _essence(status: Json) -> dict[str, Any]:
    shown = {**(status.get("shown") or {})}
    shown.pop("eta", None)
    kept = {key: value for key, value in status.items() if key not in ("etaSeconds", "expectedFinish", "conditions")}
    kept["shown"] = shown
    kept["conditions"] = [(c.get("type"), c.get("status"), c.get("reason")) for c in status.get("conditions") or ()]
    return {key: value for key, value in kept.items() if value not in (None, "", {}, [])}


def is_over(tj: Json) -> bool:
    return (tj.get("status") or {}).get("state") in OVER


def clipped(text: str) -> str:
    """Short enough for an object, and nothing that a terminal would act upon."""
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 3]}..."


def reason_word(why: str) -> str:
    """`never_fits` as `NeverFits`."""
    return "".join(part.capitalize() for part in why.split("_"))


def _message(view: Json, now_s: float) -> str:
    """The reason; of a job that failed also what it wrote last, and of one that is stalled since when."""
    if view["stalled_s"] is not None:
        return f"no step since {stamp_of(round(now_s - view['stalled_s']))}"
    if view["output"] and (view["state"] == "failed" or view["why"] == "backoff"):
        return "; ".join(part for part in (view["reason"], view["hint"], view["output"].strip()) if part)
    return view["reason"] or (view.get("deadline_answer") or {}).get("text", "")


def _reason(view: Json) -> str:
    if view["stalled_s"] is not None:
        return "Stalled"
    if view["why"]:
        return reason_word(view["why"])
    return {"failed": "Failed", "cancelled": "Cancelled", "rejected": "Rejected"}.get(view["state"], "")


def _places(places: list[Json]) -> list[Status]:
    return [
        {"node": p["node"], "workers": p["workers"], "servers": p["servers"], "type": p["accelerator"]}
        for p in places[:MAX_PLACES]
    ]


def _of_range(view: Json, workers: int) -> str:
    limits = view["request"]["workers"]
    low, high = limits["min"], limits["max"]
    return f"{workers}/{high}" if low == high else f"{workers}/{low}-{high}"
