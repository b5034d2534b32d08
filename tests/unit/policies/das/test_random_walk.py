"""The random-walk kernel: symmetric, positive semi-definite, not degenerate, equal to the walk on the product graph."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.policies.das import random_walk
from trainmaster.policies.das.gaussian import (
    _FREQUENCY,
    _PHASE,
    WAVES,
    Kernel,
    SpeedHistory,
    walk_features,
)
from trainmaster.policies.das.random_walk_constants import FAR, PHI_STEP, STEPS

KERNEL = Kernel()


def a_graph(rng: np.random.Generator, machines: int) -> tuple[np.ndarray, np.ndarray]:
    speed = rng.choice([0.8, 1.0], machines)
    use = rng.integers(0, 5, machines) / 4.0
    part = np.full(machines, rng.choice([0.25, 0.5, 1.0]))
    return np.stack([speed, use, part], axis=1), rng.integers(0, 2, machines)


def transition(phi: np.ndarray, rack_of: np.ndarray, kernel: Kernel) -> np.ndarray:
    """P(i) written out."""
    at = np.rint(phi / PHI_STEP) * PHI_STEP
    distance = ((at[:, None, :] - at[None, :, :]) ** 2).sum(axis=2)
    edges = np.where(rack_of[:, None] == rack_of[None, :], 1.0, FAR)
    return edges * np.exp(-distance / (2.0 * kernel.width**2)) / len(phi)


def similarity(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """K0 of the definition: the features whose scalar products approximate exp(-|x - y|^2 / 2 w^2)."""

    def z(phi: np.ndarray) -> np.ndarray:
        at = np.rint(phi / PHI_STEP) * PHI_STEP
        return np.sqrt(2.0 / WAVES) * np.cos(at @ (_FREQUENCY / KERNEL.width) + _PHASE)

    return z(one) @ z(other).T


def on_the_product_graph(one, other) -> np.ndarray:
    """The definition, with the matrix of the product graph written out."""
    (phi1, racks1), (phi2, racks2) = one, other
    p1, p2 = transition(phi1, racks1, KERNEL), transition(phi2, racks2, KERNEL)
    product = np.kron(p1, p2)
    start = similarity(phi1, phi2).reshape(-1)
    total, walked = np.zeros_like(start), start
    for _ in range(STEPS):
        total = total + walked
        walked = KERNEL.decay * product @ walked
    return total.reshape(len(phi1), len(phi2))


@pytest.mark.parametrize("seed", range(5))
def test_equals_the_walk_on_the_product_graph(seed: int):
    rng = np.random.default_rng(seed)
    one, other = a_graph(rng, 6), a_graph(rng, 5)
    raw = on_the_product_graph(one, other)
    norm1 = np.sqrt(np.diag(on_the_product_graph(one, one)))
    norm2 = np.sqrt(np.diag(on_the_product_graph(other, other)))
    fast = walk_features(*one, KERNEL) @ walk_features(*other, KERNEL).T
    assert np.allclose(fast, raw / norm1[:, None] / norm2[None, :], atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12))
def test_symmetric_and_positive_semi_definite(seed: int, machines: int):
    rng = np.random.default_rng(seed)
    graphs = [a_graph(rng, machines) for _ in range(4)]
    psi = np.concatenate([walk_features(*graph, KERNEL) for graph in graphs])
    gram = psi @ psi.T
    assert np.allclose(gram, gram.T)
    assert np.linalg.eigvalsh(gram).min() > -1e-9
    assert np.allclose(np.diag(gram), 1.0)


def test_transition_is_symmetric_and_sub_stochastic():
    phi, racks = a_graph(np.random.default_rng(1), 9)
    p = transition(phi, racks, KERNEL)
    assert np.allclose(p, p.T)
    assert (p.sum(axis=1) <= 1.0 + 1e-12).all()
    assert KERNEL.decay * np.abs(np.linalg.eigvalsh(np.kron(p, p))).max() < 1.0


def test_not_degenerate():
    """Graphs in different states are told apart, which a row-stochastic walk could not do."""
    rng = np.random.default_rng(2)
    psi = [walk_features(*a_graph(rng, 8), KERNEL) for _ in range(6)]
    means = np.stack([p.mean(axis=0) for p in psi])
    gram = means @ means.T
    off = gram[~np.eye(6, dtype=bool)]
    assert off.std() > 0.01
    p, racks = a_graph(rng, 8)
    idle, busy = p.copy(), p.copy()
    idle[:, 1], busy[:, 1] = 0.0, 1.0
    alike = float((walk_features(idle, racks, KERNEL)[0] * walk_features(busy, racks, KERNEL)[0]).sum())
    assert alike < 0.9


def test_posterior_is_that_of_the_equations():
    """mu and Sigma against the textbook formulas with the whole Gram matrix."""
    rng = np.random.default_rng(3)
    history, m = SpeedHistory(KERNEL), 6
    rows, y, kinds, on = [], [], [], []
    for t in range(9):
        phi, racks = a_graph(rng, m)
        psi = walk_features(phi, racks, KERNEL)
        machines = sorted(rng.choice(m, rng.integers(1, 3), replace=False).tolist())
        speed, kind = float(rng.uniform(0.7, 1.1)), f"k{t % 2}"
        history.add(f"j{t}", kind, machines, psi, speed)
        mean = psi[machines].mean(axis=0)
        rows.append(mean / np.linalg.norm(mean))
        y.append(history.seen[f"j{t}"].log_speed)
        assert len(machines) > 1 or y[-1] == np.log(speed)
        kinds.append(kind)
        share = np.zeros(m)
        share[machines] = history.seen[f"j{t}"].share
        on.append(share)
    rows, y, on = np.array(rows), np.array(y), np.array(on)

    def like(a, b):
        return np.where(np.array(a)[:, None] == np.array(b)[None, :], 1.0, KERNEL.same_kind)

    k = KERNEL
    gram = k.walk**2 * rows @ rows.T * like(kinds, kinds) + k.machine**2 * on @ on.T + k.noise**2 * np.eye(9)
    psi = walk_features(*a_graph(rng, m), KERNEL)
    cross = k.walk**2 * psi @ rows.T * like(["k0"] * m, kinds) + k.machine**2 * on.T
    prior = k.walk**2 * psi @ psi.T + k.machine**2 * np.eye(m)
    centre = y.sum() / (len(y) + 2.0)
    mu = centre + cross @ np.linalg.solve(gram, y - centre)
    sigma = prior - cross @ np.linalg.solve(gram, cross.T)
    got_mu, got_sigma = history.expect("k0", psi, np.arange(m))
    assert np.allclose(got_mu, mu)
    assert np.allclose(got_sigma, sigma)
    assert np.linalg.eigvalsh(got_sigma).min() > 0
    for kind in ("k0", "k1", "never seen"):  # the mean alone is computed another way
        assert np.allclose(history.expect(kind, psi)[0], history.expect(kind, psi, np.arange(m))[0], atol=1e-12)
    history.add("news", "k0", [0], psi, 0.5)
    assert np.allclose(history.expect("k0", psi)[0], history.expect("k0", psi, np.arange(m))[0], atol=1e-12)


def test_learns_which_machine_is_slow_and_is_sure_of_it():
    phi = np.tile([1.0, 0.0, 1.0], (4, 1))
    psi = walk_features(phi, np.zeros(4, np.int64), KERNEL)
    history = SpeedHistory(KERNEL)
    before = np.diag(history.expect("k", psi, np.arange(4))[1])
    for t in range(6):
        history.add(f"a{t}", "k", [1], psi, 0.75)
        history.add(f"b{t}", "k", [2], psi, 1.0)
    mean, covariance = history.expect("k", psi, np.arange(4))
    assert mean[1] < mean[2] - 0.1
    after = np.diag(covariance)
    assert after[1] < 0.5 * before[1]
    assert after[3] > 2.0 * after[1]  # of a machine never used one is less sure


def test_history_keeps_the_last_jobs_and_survives_json():
    kernel = Kernel(history=3)
    psi = walk_features(np.tile([1.0, 0.0, 1.0], (2, 1)), np.zeros(2, np.int64), kernel)
    history = SpeedHistory(kernel)
    for t in range(5):
        history.add(f"j{t}", "k", [0], psi, 1.0 - t / 100)
    history.add("j3", "k", [1], psi, 0.5)
    history.add("bad", "k", [1], psi, float("nan"))
    assert list(history.seen) == ["j2", "j3", "j4"]
    back = SpeedHistory.from_json(kernel, history.to_json())
    assert np.allclose(back.expect("k", psi)[0], history.expect("k", psi)[0], atol=1e-5)


def test_a_gang_tells_of_its_slowest_machine():
    """A gang with a machine known to be slow says nothing of the other; of two unknown ones it says the same of each,
    and no more than that the slower is as it is."""
    psi = walk_features(np.tile([1.0, 0.0, 1.0], (4, 1)), np.zeros(4, np.int64), KERNEL)
    history = SpeedHistory(KERNEL)
    for t in range(6):
        history.add(f"slow{t}", "k", [0], psi, 0.75)
        history.add(f"usual{t}", "k", [1], psi, 1.0)
    before = history.expect("k", psi)[0]
    history.add("gang", "k", [0, 1], psi, 0.75)
    assert history.seen["gang"].share[0] > 0.95
    assert history.expect("k", psi)[0][1] == pytest.approx(before[1], abs=0.02)
    history.add("unknown", "k", [2, 3], psi, 1.0)
    seen = history.seen["unknown"]
    assert seen.share == pytest.approx((0.5, 0.5))
    # E min of two = mean - deviation / sqrt(pi)
    assert seen.log_speed == pytest.approx(KERNEL.machine / np.sqrt(np.pi), rel=0.01)


def test_the_least_of_several_against_draws():
    mean, deviation = np.array([0.0, 0.1, -0.1]), np.array([0.1, 0.05, 0.02])
    p = np.zeros(len(mean))
    least = random_walk.least(mean, deviation, p)
    drawn = np.random.default_rng(1).normal(mean, deviation, (200_000, 3))
    assert np.allclose(p, np.bincount(drawn.argmin(axis=1), minlength=3) / len(drawn), atol=5e-3)
    assert least == pytest.approx(drawn.min(axis=1).mean(), abs=1e-3)


def test_a_machine_is_remembered_longer_than_tau_jobs():
    kernel = Kernel(history=4)
    psi = walk_features(np.tile([1.0, 0.0, 1.0], (3, 1)), np.zeros(3, np.int64), kernel)
    history = SpeedHistory(kernel)
    for t in range(6):
        history.add(f"slow{t}", "k", [0], psi, 0.7)
        history.add(f"usual{t}", "k", [1], psi, 1.0)
    for t in range(8):
        history.add(f"later{t}", "k", [1], psi, 1.0)
    assert all(0 not in o.machines for o in history.seen.values())
    mean, covariance = history.expect("k", psi, np.arange(3))
    assert mean[0] < mean[1] - 0.15
    assert covariance[0, 0] < 0.5 * covariance[2, 2]
    back = SpeedHistory.from_json(kernel, history.to_json())
    assert np.allclose(back.expect("k", psi)[0], mean, atol=1e-5)
    assert np.allclose(history.expect("k", psi)[0], mean, atol=1e-12)
