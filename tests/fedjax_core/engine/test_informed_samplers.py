"""Samplers that know their clients, against loops over clients with the same noise."""

import dataclasses
import itertools
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core import experiment
from fedjax_core.algorithm import Cohort
from fedjax_core.devices import Availability, ClientDevices, DeviceProfiles
from fedjax_core.engine import client_sampling, rounds
from fedjax_core.engine.client_sampler import ClientFacts, ClientSampler
from fedjax_core.engine.informed_samplers import OortSampler, PowerOfChoiceSampler, sample_by_weight
from fedjax_core.experiment import config_warnings, uplink_options
from fedjax_core.privacy import PrivacyConfig
from fedjax_core.training import aggregators
from methods.fedavg import fedavg
from tests import naive, toy
from tests.methods.test_fedavg import MODEL

N, C = toy.CLIENTS, 3
SIZES = np.array([len(index) for index in toy.data().train_index])
SPEED = np.array([30.0, 10.0, 100.0, 20.0, 5.0, 80.0, 40.0, 60.0])
EVEN_OR_ALL = Availability({"even": np.arange(N) % 2 == 0}, lambda arrays, r, ids: arrays["even"][ids] | (r % 2 == 1))
KEY = jax.random.key(3)


def facts(examples, seconds=(), reached=None, losses=None) -> ClientFacts:
    reached = np.ones(len(examples), bool) if reached is None else reached
    compute = lambda ids, number, key: jnp.asarray(losses)[jnp.minimum(ids, len(examples) - 1)]
    return ClientFacts(jnp.asarray(examples), jnp.asarray(seconds), lambda ids: jnp.asarray(reached)[ids], compute)


def noise(key, number: int) -> np.ndarray:
    return np.asarray(jax.random.gumbel(key, (number,), mode="high"))


def take(weights, noise, number: int) -> list[int]:
    """The clients of the highest log weight + noise, none of weight 0."""
    order = sorted(range(len(weights)), key=lambda i: -(math.log(weights[i]) + noise[i]) if weights[i] else math.inf)
    return [i for i in order[:number] if weights[i]]


def simulate(sampling: str, method: str = "fedavg_uniform", available: bool = False, timed: bool = False, **settings):
    profiles = DeviceProfiles(SPEED, *(np.full(N, value) for value in (np.inf, np.inf, 0.1, np.inf, 0.0))) if timed else None
    devices = ClientDevices(profiles, EVEN_OR_ALL if available else None) if available or timed else None
    return toy.simulate(method, sampling=sampling, client_devices=devices, **{"cohort": C, "mixed": False} | settings)


def cohort_ids(simulation, state) -> list[int]:
    drawn = rounds.draw_cohorts(simulation.spec, simulation.compiled.device_arrays, state.key, state.round, state)
    return [int(i) for i in drawn[0][0].ids if i < N]


def test_draws_by_weight_are_successive_draws_without_replacement():
    weights, number = np.array([1.0, 2.0, 4.0, 0.0]), 6000
    keys = jax.random.split(jax.random.key(0), number)
    ids = np.asarray(jax.vmap(lambda key: sample_by_weight(key, jnp.asarray(weights), 2))(keys))
    for i, k in itertools.permutations(range(3), 2):
        p = weights[i] / 7 * weights[k] / (7 - weights[i])
        share = np.mean((ids[:, 0] == i) & (ids[:, 1] == k))
        assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / number)
    assert sample_by_weight(KEY, jnp.asarray(weights), 4).tolist()[3] == 4


def test_by_size_and_by_availability():
    available, by_size = simulate("available", available=True), simulate("available(by_size=True)", available=True)
    size, seen = simulate("size"), set()
    state = size.init(0)
    for r in range(4):
        gumbel = noise(naive.stream(0, naive.COHORT, r), N)
        reached = np.array([i % 2 == 0 or r % 2 == 1 for i in range(N)])
        at_round = state._replace(round=jnp.int32(r))
        assert cohort_ids(size, at_round) == take(SIZES, gumbel, C)
        assert cohort_ids(available, at_round) == take(reached, gumbel, C)
        assert cohort_ids(by_size, at_round) == take(SIZES * reached, gumbel, C)
        seen |= set(cohort_ids(available, at_round))
    assert len(seen) > C
    few = client_sampling.make_sampler("available", C, N).draw(KEY, 0, facts(SIZES, reached=np.arange(N) == 5), ())
    assert few.tolist() == [5, N, N]
    empty = facts(np.where(np.arange(N) == 5, 0, SIZES), reached=np.isin(np.arange(N), (5, 6)))
    assert client_sampling.make_sampler("available", C, N).draw(KEY, 0, empty, ()).tolist() == [6, N, N]


@pytest.mark.parametrize(("options", "candidates"), [("", 2 * C), (f"(candidates={N})", N)])
def test_power_of_choice_takes_the_worst_candidates(options, candidates):
    plan = (1, 1) if candidates < N else (2, min(2, jax.device_count()))
    simulation = simulate(f"power_of_choice{options}", plan=plan)
    state, clients = simulation.init(0), naive.rows(toy.data())
    for r in range(3):
        draw_key, _ = jax.random.split(naive.stream(0, naive.COHORT, r))
        losses = [float(naive.cross_entropy(MODEL.apply(state.server.net, x)[0]["logits"], y)) for x, y in clients]
        chosen = sorted(take(SIZES, noise(draw_key, N), candidates), key=lambda i: -losses[i])[:C]
        assert set(cohort_ids(simulation, state)) == set(chosen)
        state, metrics = simulation.run_rounds(state, 1)
        assert metrics[0]["cohort"] == C
    shapes, plain = simulation.spec.shapes, simulate("fixed").spec.shapes
    assert shapes.down == pytest.approx(plain.down * candidates / C)
    assert shapes.up == pytest.approx(plain.up + 4 * candidates / C)


def test_power_of_choice_on_a_few_examples_or_on_known_losses():
    batch = PowerOfChoiceSampler(C, N, examples=2)
    ids = batch.draw(KEY, 0, dataclasses.replace(facts(SIZES), compute_losses=lambda ids, number, key: -ids * number), ())
    draw_key, _ = jax.random.split(jax.random.fold_in(KEY, 0))
    assert ids.tolist() == sorted(take(SIZES, noise(draw_key, N), 2 * C))[:C]  # -2 * id is a client's loss
    simulation = simulate("power_of_choice(loss='last', candidates=8)")
    assert simulation.spec.shapes == simulate("fixed").spec.shapes
    state = simulation.init(0)
    known: dict[int, float] = {}
    for _ in range(4):
        draw_key, _ = jax.random.split(naive.stream(0, naive.COHORT, int(state.round)))
        candidates = take(SIZES, noise(draw_key, N), N)
        chosen = sorted(candidates, key=lambda i: -known.get(i, math.inf))[:C]
        assert cohort_ids(simulation, state) == chosen
        state, metrics = simulation.run_rounds(state, 1)
        known = {i: float(loss) for i, loss in enumerate(state.sampler) if np.isfinite(loss)}
        mean = sum(SIZES[i] * known[i] for i in chosen) / sum(SIZES[i] for i in chosen)
        assert mean == pytest.approx(metrics[0]["train/loss"], rel=1e-5)
    assert len(known) == N


def test_power_of_choice_takes_no_empty_place_before_a_candidate():
    few = facts(SIZES, reached=np.arange(N) < 2, losses=np.arange(N))
    assert PowerOfChoiceSampler(C, N).draw(KEY, 0, few, ()).tolist() == [1, 0, N]


def test_power_of_choice_is_by_size_where_all_candidates_are_taken():
    losses = np.zeros(N)
    few, ties = PowerOfChoiceSampler(C, N, candidates=C), PowerOfChoiceSampler(C, N)
    assert [PowerOfChoiceSampler(size, N).num_candidates for size in (3, 5)] == [6, N]
    draw_key, _ = jax.random.split(jax.random.fold_in(KEY, 7))
    expected = take(SIZES, noise(draw_key, N), C)
    assert few.draw(KEY, 7, facts(SIZES, losses=np.arange(N)), ()).tolist() == sorted(expected, reverse=True)
    assert ties.draw(KEY, 7, facts(SIZES, losses=losses), ()).tolist() == expected


class NaiveOort:
    """Oort in loops over clients, in float64."""

    def __init__(self, sampler: OortSampler, examples, seconds):
        self.of, self.examples, self.seconds = sampler, examples, seconds
        self.utility, self.last, self.quantile = {}, {}, sampler.quantile
        self.windows, self.window = [], []

    def draw(self, round_num: int, reached) -> list[int]:
        of, t, clients = self.of, round_num + 1, range(len(self.examples))
        keys = jax.random.split(jax.random.fold_in(KEY, round_num), 3)
        old = [i for i in clients if reached[i] and i in self.last]
        new = [i for i in clients if reached[i] and i not in self.last]
        preferred = math.inf
        if self.quantile < 1:
            preferred = sorted(self.seconds)[min(int(len(clients) * self.quantile + 1e-3), len(clients) - 1)]
        slow = [(preferred / s) ** of.penalty if s > preferred else 1.0 for s in self.seconds]
        share = max(of.exploration * of.decay**t, of.least) if new else 0.0
        num_old = min(int(of.size * (1 - share) + 1e-3), len(old))
        num_new = min(of.size - num_old, len(new))

        score = {}
        if old:
            utilities = sorted(self.utility[i] for i in old)
            lowest = 0.999 * utilities[0]
            clip = utilities[min(int(len(old) * of.clip + 1e-3), len(old) - 1)]
            for i in old:
                scaled = (min(self.utility[i], clip) - lowest) / max(utilities[-1] - lowest, 1e-4)
                score[i] = (scaled + math.sqrt(0.1 * math.log(t) / self.last[i])) * slow[i]
        weights = [0.0] * len(clients)
        if num_old:
            kth = sorted(score.values(), reverse=True)[num_old - 1]
            for i in old:
                weights[i] = score[i] if score[i] >= of.cutoff * kth else 0.0
        chosen = take(weights, noise(keys[0], len(clients)), num_old)
        pool = sorted(new, key=lambda i: -self.examples[i] * slow[i])[: int(of.pool * num_new + 1e-3)]
        weights = [self.examples[i] * slow[i] if i in pool else 0.0 for i in clients]
        chosen += take(weights, noise(keys[1], len(clients)), num_new)
        fill = np.asarray(jax.random.uniform(keys[2], (len(clients),)))
        rest = sorted((i for i in clients if reached[i] and i not in chosen), key=lambda i: fill[i])
        return chosen + rest[: of.size - len(chosen)]

    def update(self, round_num: int, losses: dict[int, float]) -> None:
        of, t = self.of, round_num + 1
        exploited = [self.examples[i] * loss for i, loss in losses.items() if i in self.last]
        self.window.append(float(np.mean(exploited)) if exploited else 0.0)
        for i, loss in losses.items():
            self.utility[i], self.last[i] = self.examples[i] * loss, t
        if t % of.window == 0:
            self.windows.append(sum(self.window))
            self.window = []
            if len(self.windows) > 1:
                before, now = self.windows[-2:]
                if abs(now - before) <= 0.1 * before:
                    self.quantile = min(1.0, self.quantile + of.step)
                elif abs(now - before) >= 5 * before:
                    self.quantile = max(of.step, self.quantile - of.step)


@pytest.mark.parametrize("options", [{}, {"penalty": 0.0, "least": 0.1, "decay": 0.7}, {"exploration": 0.0, "least": 0.0}], ids=str)
def test_oort_equals_loops(options):
    number, size, rng = 30, 6, np.random.default_rng(0)
    sampler = OortSampler(size, number, window=4, **options)
    examples, seconds = rng.integers(5, 40, number), rng.uniform(1, 9, number).astype(np.float32)
    oracle, state = NaiveOort(sampler, examples, seconds), sampler.init(facts(examples, seconds))
    quantiles = set()
    step = jax.jit(lambda state, r, reached: sampler.draw(KEY, r, facts(examples, seconds, reached), state))
    learn = jax.jit(lambda state, r, cohort, losses: sampler.update(state, facts(examples, seconds), r, cohort, losses))
    for r in range(24):
        reached = rng.random(number) < 0.8
        ids = step(state, r, reached).tolist()
        assert sorted(ids) == sorted(oracle.draw(r, reached)), r
        scale = 1.0 if r < 12 else 30.0 if r < 16 else 1e-3  # flat, then two changes
        losses, came = scale * rng.uniform(0.9, 1.1, size), rng.random(size) < 0.9
        cohort = Cohort(jnp.asarray(ids), jnp.where(came, examples[ids], 0))
        state = learn(state, r, cohort, jnp.where(came, losses, jnp.nan))
        oracle.update(r, {i: loss for i, loss, back in zip(ids, losses, came, strict=True) if back})
        assert float(state.quantile) == pytest.approx(oracle.quantile)
        quantiles.add(round(oracle.quantile, 3))
    assert len(quantiles) > 1
    for i, utility in oracle.utility.items():
        assert float(state.utility[i]) == pytest.approx(utility, rel=1e-5)
        assert int(state.last_round[i]) == oracle.last[i]


def test_oort_prefers_seconds_of_clients_that_have_examples():
    sampler, clients = OortSampler(2, 5, quantile=0.4), facts(np.array([0, 0, 5, 5, 5]), np.array([0.1, 0.1, 2.0, 4.0, 8.0]))
    np.testing.assert_allclose(sampler._penalise(clients, sampler.init(clients))[2:], [1, 1, 0.25])


def test_oort_begins_with_clients_that_never_took_part():
    sampler = OortSampler(4, 12, exploration=1.0, decay=1.0, least=1.0)
    known = facts(np.full(12, 5), np.ones(12))
    state, seen = sampler.init(known), []
    for r in range(3):
        ids = sampler.draw(KEY, r, known, state)
        seen += ids.tolist()
        state = sampler.update(state, known, r, Cohort(ids, jnp.full(4, 5)), jnp.ones(4))
    assert sorted(seen) == list(range(12))
    few = facts(np.full(12, 5), np.ones(12), reached=np.arange(12) < 2)
    assert sorted(sampler.draw(KEY, 0, few, sampler.init(few)).tolist()) == [0, 1, 12, 12]
    assert len(set(sampler.draw(KEY, 3, known, state).tolist())) == 4  # then exploits


def test_a_run_with_oort_goes_on_bit_for_bit_from_a_checkpoint():
    simulation = simulate("oort(exploration=0.5, window=2)", timed=True)
    whole, metrics = simulation.run_rounds(simulation.init(0), 4)
    state, first = simulation.run_rounds(simulation.init(0), 2)
    saved = jax.tree.map(np.copy, simulation.to_host(state))
    wanted = jax.tree.map(lambda x: (x.shape, x.dtype), simulation.abstract_snapshot())
    assert jax.tree.map(lambda x: (x.shape, x.dtype), saved) == wanted
    again = simulate("oort(exploration=0.5, window=2)", timed=True)
    state, second = again.run_rounds(again.from_host(saved), 2)
    assert first + second == metrics
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), jax.device_get(whole))
    assert (np.asarray(state.sampler.last_round) > 0).sum() > C


@pytest.mark.filterwarnings("ignore:plan.model")
def test_a_sampler_learns_beside_networks_that_are_divided():
    states = [simulate("oort", timed=True, plan=plan) for plan in ((1, 1), (1, 2, 2))]
    ends = [jax.device_get(sim.run_rounds(sim.init(0), 2)[0].sampler) for sim in states]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), *ends)


@pytest.mark.parametrize(
    ("sampling", "settings", "message"),
    [
        ("available", {}, "draws clients that can be reached; set devices.availability"),
        ("oort", {}, "draws by the seconds of clients' rounds; set devices.profile"),
        ("oort", {"timed": True, "hold": "host"}, "and plan.hold='host': cohorts must be known a few rounds ahead there"),
        ("power_of_choice", {"data_on": "host"}, "and plan.data='host': cohorts must be known"),
        ("power_of_choice", {"method": "local"}, "losses of the server's model; the method has none"),
        ("power_of_choice", {"method": "local", "mixed": True}, "losses of the server's model; the clients have 2 networks"),
        ("power_of_choice(candidates=2)", {}, "candidates=2 must be between the cohort's 3 and the population's 8 clients"),
        ("power_of_choice(loss='last', examples=2)", {}, "examples=2 is for loss='current'"),
        ("power_of_choice(loss='first')", {}, "loss='first' must be one of 'current', 'last'"),
    ],
)
def test_what_a_sampler_lacks_is_said(sampling, settings, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")) as error:
        simulate(sampling, **settings)
    assert "\n" not in str(error.value)


def test_probabilities_are_no_availability():
    given = ClientDevices(availability=Availability((), lambda arrays, r, ids: 0.5 * ids))
    with pytest.raises(TypeError, match=r"devices.availability must give a bool \[C\] of ids \[C\]; of 3 it gives float32\[3\]"):
        toy.simulate("fedavg", mixed=False, client_devices=given)


def test_a_sampler_of_the_page_runs_from_a_file(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "pages" / "time.md").read_text()
    (code,) = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "ClientSampler" in code]
    (tmp_path / "fastest.py").write_text(code)
    config = experiment.load_config("fedavg:smoke")
    config.cohort.update(fraction=None, size=2, sampling=f"{tmp_path}/fastest.py:FastestSampler(times=10)")
    with pytest.raises(ValueError, match=r"fastest.py:FastestSampler\(times=10\)' draws by the seconds .* set devices.profile"):
        experiment.build(config)
    config.devices.profile = "lognormal(examples_per_second=100)"
    simulation = experiment.build(config)
    _, metrics = simulation.run_rounds(simulation.init(0), 1)
    seconds = simulation.spec.client_seconds
    assert seconds is not None
    assert metrics[0]["simulated_seconds"] == np.sort(seconds)[1]


OWN_OF_ALL = """
import jax.numpy as jnp
from fedjax_core.engine.client_sampling import ClientSampler

class FirstHalf(ClientSampler):
    def draw(self, key, round_num, clients, state):
        return jnp.arange(self.size // 2)
"""


def test_a_sampler_of_ones_own_may_leave_places_of_all_clients_empty(tmp_path):
    """Privacy takes all clients to be in every round by the samplers of the library alone."""
    (tmp_path / "own.py").write_text(OWN_OF_ALL)
    private = PrivacyConfig("gaussian", 1.0, 1.0, None, 1e-5, None, None, "rdp", None, None, 3)
    ledger = uplink_options.account_privacy(private, None, 8, "size", calibrate=False)
    assert ledger is not None
    assert ledger.release.sampling == "all"
    with pytest.raises(ValueError, match="epsilon is not known for cohorts that are drawn this way"):
        uplink_options.account_privacy(private, None, 8, f"{tmp_path}/own.py:FirstHalf", calibrate=False)


def averaging(task, *, optimizer, epochs, batch, weights):
    """A method of one's own."""
    return fedavg(task, optimizer=optimizer, epochs=epochs, batch=batch, weights=weights)


def test_a_run_warns_of_examples_that_count_twice():
    config = experiment.load_config("fedavg:smoke")
    config.cohort.sampling = "power_of_choice(loss='last')"
    (line,) = config_warnings.check_sampling(experiment.resolve(config), aggregators.mean)
    assert line == (
        "cohort.sampling=\"power_of_choice(loss='last')\" draws clients by their examples, and method.weights='samples' weights "
        "them by these again; set method.weights='uniform'"
    )
    config.method.weights = "uniform"
    assert not config_warnings.check_sampling(experiment.resolve(config), aggregators.mean)
    config.method.name = f"{__file__}:averaging"  # of one's own, whose Reduce decides
    assert not config_warnings.check_sampling(experiment.resolve(config), lambda: aggregators.mean(aggregators.weight_uniformly))
    (line,) = config_warnings.check_sampling(experiment.resolve(config), aggregators.mean)
    assert "and the method's collect weights them by these again; take aggregators.mean(aggregators.weight_uniformly)" in line


@dataclasses.dataclass(frozen=True)
class Wrong(ClientSampler):
    """Draws ids that are no cohort."""

    first: int = 0

    def draw(self, key, round_num, clients, state):
        return jnp.full(self.size, self.first, jnp.int32)


@pytest.mark.parametrize(
    ("first", "message"), [(2, f"client 2 {C} times; a cohort has each client"), (-3, "client -3; ids are 0 to N")]
)
def test_what_is_no_cohort_is_refused(first, message):
    simulation = simulate(f"{__file__}:Wrong(first={first})")
    with pytest.raises(ValueError, match=f"cohort.sampling: draw returned {message}"):
        simulation.run_rounds(simulation.init(0), 1)


def test_an_id_of_no_client_is_refused_even_if_it_drops_out():
    simulation = simulate(f"{__file__}:Wrong(first=-3)", dropout=0.999)
    with pytest.raises(ValueError, match=r"cohort\.sampling: draw returned client -3"):
        simulation.run_rounds(simulation.init(0), 1)
