"""How well the speed estimator tells what was not measured: median errors in percent, the tested application left out.

    python bench/study_speeds.py [--data DIR] [--population FILE]

DIR holds `traces/raw/adaptdl_profiles` and `gavel/throughputs` (default: $TRAINMASTER_DATA, else ../shared). With
--population, the table of the population that the product ships is learned from all of them and written instead.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path

from support import speed_study
from support.speed_study import Curves, Errors, Gavel, adaptdl, as_seen, without
from trainmaster.estimate.speeds.observations import Observation, Place, Profile, observed
from trainmaster.estimate.speeds.population import learn, to_json, vague
from trainmaster.learn.sizing.job_types import ANALYTIC, MEASURED

SERVER_SIZES = [(w, p) for w in (1, 2, 4, 8, 16, 32) for p in (1, 2, 4, 8, 16, 32)]


def with_servers() -> list[tuple[str, list[Observation]]]:
    """Kinds with parameter servers: curves fitted to published points, and from published constants."""
    found = []
    for source, kinds in (("measured", MEASURED), ("analytic", ANALYTIC)):
        for kind in kinds:
            profile = Profile(f"{source}:{kind.name}")
            seen = [observed(profile, Place(w, p), float(kind.scaling().speed(w, p)), 0.05) for w, p in SERVER_SIZES]
            found.append((profile.key, seen))
    return found


def everything(data: Path) -> tuple[Curves, Gavel]:
    return (
        adaptdl(data / "traces/raw/adaptdl_profiles"),
        Gavel(data / "gavel/throughputs/simulation_throughputs.json"),
    )


def write_population(data: Path, out: Path) -> None:
    applications, gavel = everything(data)
    curves = [(p.model, as_seen(p, curve)) for p, curve in applications.items()]
    for kind in ("k80", "p100"):
        curves += [(p.model, as_seen(p, curve)) for p, curve in gavel.curves(kind, across=True).items()]
    table = to_json(learn([*curves, *with_servers()], vague()))
    out.write_text(json.dumps(table, separators=(",", ":")).replace('],"', '],\n"').replace("],[", "],\n[") + "\n")


def report(name: str, bars: tuple[float, ...], of: Callable[[int], Errors], whole: bool = False) -> list[Errors]:
    found = [of(k) for k in range(1, len(bars) + 1)]
    shown = " / ".join(f"{one.median_of_all_percent if whole else one.median_percent:.1f}" for one in found)
    held = " / ".join(f"{one.held_percent:.0f} %" for one in found)
    width = " / ".join(f"{one.width:.2f}" for one in found)
    print(
        f"{name:44} {shown:20} bar {' / '.join(f'{bar:g}' for bar in bars):14} held {held:20} width {width}", flush=True
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("TRAINMASTER_DATA") or Path(__file__).resolve().parents[2] / "shared"
    parser.add_argument("--data", type=Path, default=default)
    parser.add_argument("--population", type=Path)
    args = parser.parse_args()
    data = Path(args.data)
    if args.population:
        write_population(data, args.population)
        return
    applications, gavel = everything(data)
    pooled: list[list[Errors]] = []
    learnt = without(applications)
    bars = (24, 14, 11)
    pooled.append(report("AdaptDL, random sizes", bars, lambda k: speed_study.sizes(applications, learnt, k)))
    report("AdaptDL, chosen sizes", (18, 11, 8), lambda k: speed_study.sizes(applications, learnt, k, 4, chosen=True))
    for kind in ("k80", "p100"):
        curves = gavel.curves(kind, across=False)
        found = without(curves)
        pooled.append(report(f"Gavel {kind}, random sizes", (20, 8, 7), lambda k: speed_study.sizes(curves, found, k)))  # noqa: B023
    both = {**applications, **gavel.curves("k80", True), **gavel.curves("p100", True)}
    found = without(both)
    report("other clusters too, random sizes", bars, lambda k: speed_study.sizes(both, found, k, 4))
    report("types, one of three", (33,), lambda _: speed_study.types(gavel, False), whole=True)
    report("types, model seen", (15,), lambda _: speed_study.types(gavel, True), whole=True)
    report("pairs, one probe", (10,), lambda _: speed_study.pairs(gavel, False), whole=True)
    report("pairs, one probe, models seen", (5,), lambda _: speed_study.pairs(gavel, True), whole=True)
    for k in range(3):
        held = [one for errors in pooled for one in errors[k].held]
        widths = [one for errors in pooled for one in errors[k].widths]
        share, width = 100 * sum(held) / len(held), sum(widths) / len(widths)
        print(f"80 % bands after {k + 1}: held {share:.0f} %, log width {width:.2f}")


if __name__ == "__main__":
    main()
