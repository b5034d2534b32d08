"""DAS learns: agents in NumPy are those in PyTorch, training is repeatable and resumes, a better choice gains."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from trainmaster.learn.advantage import generalised_advantage  # noqa: E402
from trainmaster.learn.das.jobs import synthetic_pool  # noqa: E402
from trainmaster.learn.das.options import DasOptions  # noqa: E402
from trainmaster.learn.das.torch_agents import CRITIC_FEATURES, TorchAgents  # noqa: E402
from trainmaster.learn.das.trainer import COST_SCALE, Trainer, judged_against_others, time_reward  # noqa: E402
from trainmaster.learn.run_folder import CHECKPOINT, WEIGHTS  # noqa: E402
from trainmaster.model.errors import InputError  # noqa: E402
from trainmaster.policies.das.features import N_JOB, N_MACHINE, N_PAIR  # noqa: E402
from trainmaster.policies.das.network import VARIANTS, Agents  # noqa: E402
from trainmaster.policies.das.weights import SHIPPED, load  # noqa: E402

POOL = synthetic_pool()
TINY = DasOptions(
    width=8, hidden=8, heads=2, warm_up_episodes=3, warm_up_steps=5, iterations=2, episodes=3, jobs=12, learned=20,
    validate_every=1, validation_traces=1,
)  # fmt: skip


@pytest.fixture(autouse=True)
def short_streams(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trainmaster.learn.das.trainer.JOBS", 15)


@pytest.mark.parametrize("variant", sorted(VARIANTS))
@pytest.mark.parametrize("n", [1, 7])
def test_numpy_and_torch_agree(variant: str, n: int):
    there = TorchAgents(8, 8, 2, variant, 4.0, 3)
    here = Agents(there.export(), 2, variant)
    rng = np.random.default_rng(1)
    jobs, machines, pairs = rng.normal(size=(n, N_JOB)), rng.normal(size=(5, N_MACHINE)), rng.normal(size=(5, N_PAIR))
    speed = rng.normal(size=5) / 10
    with torch.no_grad():
        # Padding must change nothing.
        padded, real = np.zeros((1, n + 3, N_JOB)), np.zeros((1, n + 3))
        padded[0, :n], real[0, :n] = jobs, 1.0
        given = (padded, machines[None], real, np.ones((1, 5)))
        scores = there.scores(*(torch.from_numpy(a).float() for a in given))[0, :n].numpy()
        affinity = there.affinities(torch.from_numpy(pairs).float(), torch.from_numpy(speed).float()).numpy()
    assert np.allclose(here.scores(jobs, machines), scores, atol=1e-4)
    assert np.allclose(here.affinities(pairs, speed if here.models_speed else None), affinity, atol=1e-4)


def test_the_cluster_reaches_the_order_only_by_communication():
    rng = np.random.default_rng(2)
    jobs = rng.normal(size=(6, N_JOB))
    machines = rng.normal(size=(2, 4, N_MACHINE))
    for variant, (communicates, _) in VARIANTS.items():
        agents = Agents(TorchAgents(8, 8, 2, variant, 4.0, 3).export(), 2, variant)
        same = np.allclose(agents.scores(jobs, machines[0]), agents.scores(jobs, machines[1]))
        assert same != communicates


def test_the_order_knows_positions():
    agents = Agents(TorchAgents(8, 8, 2, "da", 4.0, 3).export(), 2, "da")
    alike = np.zeros((4, N_JOB))
    scores = agents.scores(alike, np.zeros((1, N_MACHINE)))
    assert len(np.unique(scores.round(6))) == 4


def test_advantage_against_the_definition():
    reward, value = np.array([1.0, -2.0, 0.5]), np.array([0.3, 0.1, -0.4])
    kept = np.array([0.9, 0.5, 1.0])
    ahead = np.append(value[1:], 0.0)
    error = reward + kept * ahead - value
    wanted = [sum(np.prod(0.8 * kept[t:s]) * error[s] for s in range(t, 3)) for t in range(3)]
    assert np.allclose(generalised_advantage(reward, value, kept, 0.8), wanted)


def test_episodes_on_one_stream_are_judged_against_each_other():
    """The others' reward to come is the sum of their discounted rewards from that time on; a lone episode has none."""
    trainer = Trainer(replace(TINY, jobs=20, rollouts=3, reward="completion"), [POOL])
    trainer.iteration = 1
    three = [trainer._play((3 + TINY.varied) * k) for k in range(3)]  # small, three times
    alone = trainer._play(1)
    assert len({e.stream for e in three}) == 1
    assert len({e.completion_min for e in three}) > 1
    states, ahead = judged_against_others([*three, alone], horizon_h=5.0)
    assert all(s.shape == (len(e.reward), CRITIC_FEATURES) for s, e in zip(states, [*three, alone], strict=True))
    assert not ahead[3].any()
    first = []
    for other in three[1:]:
        at_h = np.array([c.at_s for c in other.record.choices]) / 3600.0
        first.append(float((other.reward * np.exp(-(at_h - at_h[0]) / 5.0)).sum()))
    assert ahead[0][0] == pytest.approx(np.mean(first))


def test_shaping_moves_charges_but_adds_none():
    """Without discount, rewards from a choice on are what is charged from then on, less what running jobs were due."""
    record = Trainer(replace(TINY, jobs=30), [POOL])._play(0).record
    reward = time_reward(record, horizon_h=1e12)
    for t in (0, 7, 20):
        charged = sum(c.cost for c in record.choices[t:])
        assert -reward[t:].sum() * COST_SCALE == pytest.approx(charged - record.choices[t].due)
    assert max(c.due for c in record.choices) > 0


def test_a_job_that_is_held_for_is_a_choice_of_order_alone():
    trainer = Trainer(replace(TINY, jobs=60), [POOL])
    record = trainer._play(0).record
    held = [c for c in record.choices if c.job < 0]
    assert held
    assert all(len(c.pairs) == 0 and len(c.could) > 1 for c in held)
    started = [c.job for c in record.choices if c.job >= 0]
    assert sorted(started) == list(range(60))


def test_log_density_of_what_was_drawn():
    """The density under the weights that drew is the one recorded: the first ratio is 1."""
    trainer = Trainer(replace(TINY, jobs=60), [POOL])
    episode = trainer._play(0)
    places = [c for c in episode.record.choices if len(c.pairs) > 1]
    orders = [(episode.record, c) for c in episode.record.choices if len(c.could) > 1]
    assert places
    assert orders
    with torch.no_grad():
        assert np.allclose(trainer._place_log_p(places).numpy(), [c.log_p_place for c in places], atol=1e-2)
        log_p, chosen, _ = trainer._order_log_p(orders)
    got = log_p.gather(1, chosen[:, None])[:, 0].numpy()
    assert np.allclose(got, [c.log_p_order for _, c in orders], atol=1e-3)


@pytest.mark.parametrize("reward", ["completion", "paper"])
def test_same_seed_same_weights_and_resume(tmp_path, reward: str):
    options = replace(TINY, reward=reward)
    whole = Trainer(options, [POOL])
    whole.run()
    half = Trainer(replace(options, iterations=1), [POOL])
    half.run()
    half.save(tmp_path, "a command")
    rest = Trainer(options, [POOL])
    rest.resume(tmp_path)
    rest.run()
    assert rest.iteration == 2
    for name, value in whole.agents.export().items():
        assert np.array_equal(value, rest.agents.export()[name]), name
    assert load(tmp_path / WEIGHTS).made_by["command"] == "a command"
    with pytest.raises(InputError, match="heads"):
        Trainer(replace(options, heads=4), [POOL]).resume(tmp_path)


def test_no_checkpoint_to_resume(tmp_path):
    with pytest.raises(InputError, match="no checkpoint"):
        Trainer(TINY, [POOL]).resume(tmp_path)
    (tmp_path / CHECKPOINT).write_bytes(b"nonsense")
    with pytest.raises(InputError, match="not a checkpoint of das"):
        Trainer(TINY, [POOL]).resume(tmp_path)


def test_imitation_learns_the_rule():
    """After imitation the agents mostly choose as the rule does on a stream that they have not seen; before, seldom."""
    options = replace(
        TINY, width=16, hidden=16, jobs=60, warm_up_episodes=15, warm_up_steps=250, warm_up_rate=0.01, gain=20.0
    )
    trainer = Trainer(options, [POOL])
    shown = trainer._play(48, teacher=True).record  # medium
    orders = [(shown, c) for c in shown.choices if len(c.could) > 1]
    places = [c for c in shown.choices if len(c.pairs) > 1]

    def agreement() -> tuple[float, float]:
        with torch.no_grad():
            log_p, chosen, _ = trainer._order_log_p(orders)
            affinity, real, _ = trainer._affinities(places)
            best = affinity.masked_fill(~real, -1e9).argmax(dim=1).numpy()
        where = [bool(c.taken[k]) for c, k in zip(places, best, strict=True)]
        return float((log_p.argmax(dim=1) == chosen).float().mean()), float(np.mean(where))

    before = agreement()
    trainer.warm_up()
    after = agreement()
    assert after[0] > max(0.6, before[0] + 0.2)
    assert after[1] > max(0.6, before[1] + 0.1)


def test_bad_options_are_told():
    with pytest.raises(InputError, match="variant"):
        DasOptions(variant="x")
    with pytest.raises(InputError, match="width"):
        DasOptions(width=30, heads=4)


def test_a_very_long_queue_is_scored_in_little_memory_and_in_nearly_the_same_order(monkeypatch):
    agents = load(SHIPPED).agents
    rng = np.random.Generator(np.random.PCG64(1))
    jobs, machines = rng.normal(size=(6000, N_JOB)), rng.normal(size=(20, N_MACHINE))
    tracemalloc.start()
    scores = agents.scores(jobs, machines)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.isfinite(scores).all() and peak < 400e6  # all at once would take 600 MB for each of several arrays
    whole = agents.scores(jobs[:400], machines)
    monkeypatch.setattr("trainmaster.policies.das.network.ATTENDED_MAX", 128)
    few = agents.scores(jobs[:400], machines)
    first, second = (np.argsort(np.argsort(found)) for found in (whole, few))
    assert np.corrcoef(first, second)[0, 1] > 0.99
