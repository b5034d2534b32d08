"""The speed estimator: recovery, calibration, order, hostile observations; and bars on measured profiles of others."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import speed_study
from trainmaster.estimate.speeds.axes import design, own_part
from trainmaster.estimate.speeds.model import BAND, Estimate, SpeedModel
from trainmaster.estimate.speeds.observations import Observation, Place, Profile, merged, observed
from trainmaster.estimate.speeds.population import Population, learn, shipped, vague
from trainmaster.model.errors import InputError

SIZES = (1, 2, 4, 8, 16, 32)
PLACES = [Place(n, 0, n > 4) for n in SIZES]


def generated(seed: int) -> dict[Place, float]:
    """A profile of a world of our own: a part that is serial and traffic that grows where nodes are crossed."""
    rng = np.random.default_rng(seed)
    compute_s, link, network = rng.lognormal(0, 0.7), rng.lognormal(-3, 0.5), rng.lognormal(-1.2, 0.6)
    return {p: p.workers / compute_s / (1 + (network if p.across else link) * math.log2(2 * p.workers)) for p in PLACES}


def learned(profiles: int = 24) -> Population:
    curves = [(f"app{k}", speed_study.as_seen(Profile(f"app{k}"), generated(1000 + k))) for k in range(profiles)]
    return learn(curves, vague())


def errors_after(population: Population, tried: list[Place], seeds: range) -> tuple[list[float], list[bool]]:
    off, held = [], []
    for seed in seeds:
        truth, profile = generated(seed), Profile("new")
        noise = np.random.default_rng(seed)
        seen = [observed(profile, p, truth[p] * math.exp(0.03 * noise.standard_normal()), 0.03) for p in tried]
        rest = [place for place in PLACES if place not in tried]
        found = SpeedModel(population, seen, 0.0).estimate(profile, rest)
        gap = found.mean - np.log([truth[place] for place in rest])
        off += np.abs(np.expm1(gap)).tolist()
        held += (np.abs(gap) < 1.2816 * found.sigma).tolist()
    return off, held


def test_two_sizes_of_a_new_profile_tell_the_others() -> None:
    population = learned()
    off, held = errors_after(population, [PLACES[0], PLACES[3]], range(60))
    assert np.median(off) < 0.05
    assert np.mean(held) > 0.7
    alone, _ = errors_after(population, [PLACES[0]], range(60))
    within, _ = errors_after(population, PLACES[:3], range(60))
    assert np.median(off) < np.median(within), "the node boundary decides"
    assert np.median(off) < np.median(alone)


def test_bands_hold_what_they_say_of_profiles_that_are_drawn_from_the_population() -> None:
    population, rng, held = shipped(), np.random.default_rng(3), []
    rows = design(PLACES, ())
    cov = rows @ population.cov @ rows.T + own_part(PLACES)
    for _ in range(200):
        truth = rng.multivariate_normal(rows @ population.mean + np.log(SIZES), cov)
        seen = [Observation(Profile("a"), PLACES[k], float(truth[k]), 1e-4) for k in (1, 4)]
        found = SpeedModel(population, seen, 0.0).estimate(Profile("a"), [PLACES[k] for k in (0, 2, 3, 5)])
        held += (np.abs(found.mean - truth[[0, 2, 3, 5]]) < 1.2816 / BAND * found.sigma).tolist()
    assert 0.76 < np.mean(held) < 0.84


def test_a_population_of_its_own_cluster_beats_the_shipped_one() -> None:
    own, _ = errors_after(learn([(f"app{k}", speed_study.as_seen(Profile(f"app{k}"), generated(1000 + k)))
                                 for k in range(24)], shipped()), [PLACES[0]], range(40))  # fmt: skip
    others, _ = errors_after(shipped(), [PLACES[0]], range(40))
    assert np.median(own) < np.median(others)


@given(st.permutations(range(8)))
def test_the_order_of_observations_does_not_matter(order: list[int]) -> None:
    profile, other = Profile("a", "m", 32), Profile("b", "m", 64)
    seen = [
        *(observed(profile, place, 3.0 * place.workers**0.8, 0.05, run=str(k)) for k, place in enumerate(PLACES[:4])),
        *(observed(other, place, 2.0 * place.workers**0.7, 0.05) for place in PLACES[:3]),
        observed(profile, Place(1, partner="b"), 1.7, 0.05),
    ]
    asked = [*PLACES, Place(1, partner="b"), Place(1, partner="c")]
    first = SpeedModel(shipped(), seen).estimate(profile, asked)
    again = SpeedModel(shipped(), [seen[k] for k in order]).estimate(profile, asked)
    assert first.mean.tolist() == again.mean.tolist() and first.sigma.tolist() == again.sigma.tolist()


def test_a_measured_place_is_believed_to_the_spread_between_runs() -> None:
    profile = Profile("a")
    once = SpeedModel(shipped(), [observed(profile, Place(4), 10.0, 0.001, run="1")])
    often = SpeedModel(shipped(), [observed(profile, Place(4), 10.0, 0.001, run=str(k)) for k in range(16)])
    same = SpeedModel(shipped(), [observed(profile, Place(4), 10.0, 0.001, run="1") for _ in range(16)])
    assert once.estimate(profile, [Place(4)]).speed()[0] == pytest.approx(10.0, rel=1e-3)
    assert once.estimate(profile, [Place(4)]).sigma[0] > 0.06
    assert same.estimate(profile, [Place(4)]).sigma[0] == pytest.approx(
        once.estimate(profile, [Place(4)]).sigma[0], rel=0.01
    )
    assert often.estimate(profile, [Place(4)]).sigma[0] < 0.05
    assert len(merged([observed(profile, Place(4), 10.0, 0.1, run=str(k)) for k in range(5)], 0.08)) == 1


def test_another_batch_of_the_model_counts_and_another_model_does_not() -> None:
    alike, stranger = Profile("b", "resnet", 64), Profile("c", "bert", 64)
    curve = {place: place.workers**0.3 for place in PLACES}
    mine = observed(Profile("a", "resnet", 32), Place(1), 5.0, 0.03)
    far = [PLACES[-1]]

    def at_32(profile: Profile) -> float:
        seen = [mine, *speed_study.as_seen(profile, curve)]
        return float(SpeedModel(shipped(), seen).estimate(mine.profile, far).speed()[0])

    plain = float(SpeedModel(shipped(), [mine]).estimate(mine.profile, far).speed()[0])
    assert at_32(stranger) == pytest.approx(plain)
    assert at_32(alike) < 0.8 * plain


def test_servers_partners_and_types_have_estimates() -> None:
    population = shipped().with_types(("k80", "v100"), (0.2, 1.0))
    profile = Profile("a")
    model = SpeedModel(population, [observed(profile, Place(4, 4, type="v100"), 8.0, 0.05)])
    found = model.estimate(
        profile, [Place(4, 1, type="v100"), Place(4, 4, type="k80"), Place(4, 4, type="v100", partner="b")]
    )
    fewer, slower, beside = found.speed()
    assert fewer < 8.0 and slower == pytest.approx(1.6, rel=0.1) and 3.0 < beside < 8.0
    low, high = found.speed(0.9), found.speed(0.1)
    assert (low < found.speed()).all() and (found.speed() < high).all()


def test_the_most_informative_place_is_across_the_node_boundary_once_one_worker_is_known() -> None:
    profile = Profile("a")
    model = SpeedModel(shipped(), [observed(profile, Place(1), 5.0, 0.03)])
    assert PLACES[model.most_informative(profile, PLACES)].across


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan, math.inf])
def test_a_speed_that_is_none_is_refused(speed: float) -> None:
    with pytest.raises(InputError):
        observed(Profile("a"), Place(1), speed, 0.1)


@pytest.mark.parametrize(
    "wrong",
    [{"log_speed": math.nan}, {"variance": -1.0}, {"variance": math.inf}, {"seconds": -1.0}, {"place": Place(0)},
     {"place": Place(1, -1)}, {"profile": Profile("")}, {"profile": Profile("a", "m", math.nan)}],
)  # fmt: skip
def test_a_hostile_observation_is_refused(wrong: dict[str, object]) -> None:
    good = Observation(Profile("a"), Place(1), 0.0, 0.01)
    with pytest.raises(InputError):
        replace(good, **wrong)  # pyright: ignore[reportArgumentType]


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**6), st.booleans(), st.floats(1e-9, 1e9)), max_size=12)
)
def test_whatever_is_measured_estimates_are_finite(rows: list[tuple[int, int, bool, float]]) -> None:
    profile = Profile("a")
    seen = [observed(profile, Place(w, s, across), speed, 0.05) for w, s, across, speed in rows]
    found: Estimate = SpeedModel(shipped(), seen).estimate(profile, [*PLACES, Place(4, 4), Place(10**6, 10**6, True)])
    assert np.isfinite(found.mean).all() and (found.sigma > 0).all() and np.isfinite(found.sigma).all()


@pytest.mark.slow
def test_bars_on_measured_profiles(shared_data) -> None:  # type: ignore[no-untyped-def]
    """The whole table: `python bench/study_speeds.py`."""
    applications = speed_study.adaptdl(shared_data("traces/raw/adaptdl_profiles"))
    learnt = speed_study.without(applications)
    for tried, bar in ((1, 24.0), (2, 14.0), (3, 11.0)):
        assert speed_study.sizes(applications, learnt, tried, 3).median_percent < bar
    gavel = speed_study.Gavel(shared_data("gavel/throughputs/simulation_throughputs.json"))
    for kind in ("k80", "p100"):
        curves = gavel.curves(kind, across=False)
        for tried, bar in ((1, 20.0), (2, 8.0), (3, 7.0)):
            assert speed_study.sizes(curves, speed_study.without(curves), tried, 6).median_percent < bar
    assert speed_study.types(gavel, model_seen=False).median_of_all_percent < 33.0
    assert speed_study.types(gavel, model_seen=True).median_of_all_percent < 15.0
