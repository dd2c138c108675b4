"""Robust rules against their definitions written naively in NumPy, with clients that are not there.

Columns in order, as NumPy has them.
"""

import importlib
import importlib.util
import itertools
import sys
import warnings

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.uplink import UplinkValue, robust_aggregation, unwrap
from fedjax_core.uplink.robust_aggregation import squared_distances
from tests import toy

C, D = 13, 4


def naive_median(x, f):
    return np.median(x, 0)


def naive_trimmed_mean(x, f):
    return np.array([np.mean(sorted(column)[f : len(column) - f]) for column in x.T])


def krum_score(x, i, f):
    apart = sorted(np.sum((x[i] - x[j]) ** 2) for j in range(len(x)) if j != i)
    return sum(apart[: max(len(x) - f - 2, 1)])


def naive_krum(x, f):
    return x[np.argmin([krum_score(x, i, f) for i in range(len(x))])]


def naive_multi_krum(x, f):
    best = np.argsort([krum_score(x, i, f) for i in range(len(x))])[: len(x) - f]
    return x[best].mean(0)


def naive_bulyan(x, f):
    f = min(f, (len(x) - 3) // 4)
    left, chosen = list(x), []
    for _ in range(len(x) - 2 * f):
        best = np.argmin([krum_score(np.array(left), i, f) for i in range(len(left))])
        chosen.append(left.pop(best))
    found = []
    for column in np.array(chosen).T:
        found.append(mean_of_nearest(column, len(column) - 2 * f))
    return np.array(found)


def mean_of_nearest(column, number):
    """Returns the mean of the `number` values closest to the median; where windows of values in order
    are as good, by their farthest value and then by the sum of distances, that of the first and last."""
    ordered, middle = np.sort(np.asarray(column, np.float64)), np.median(column)
    windows = [ordered[i : i + number] for i in range(len(ordered) - number + 1)]
    far = [(np.max(np.abs(w - middle)), np.sum(np.abs(w - middle))) for w in windows]
    best = [np.mean(w) for w, key in zip(windows, far, strict=True) if key == min(far)]
    return (best[0] + best[-1]) / 2


def naive_geometric_median(x, f, smoothing=1e-6):
    z = np.median(x, 0)
    for _ in range(8):
        w = [1 / max(np.linalg.norm(row - z), smoothing) for row in x]
        z = sum(wi * row for wi, row in zip(w, x, strict=True)) / sum(w)
    return z


NAIVE = {name.removeprefix("naive_"): function for name, function in globals().items() if name.startswith("naive_")}


def cohort(seed, absent):
    """(rows [C, D] float32 with two far ones, mask [C])."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(C, D)).astype(np.float32)
    rows[:2] += 30
    mask = np.ones(C, bool)
    mask[list(absent)] = False
    return np.where(mask[:, None], rows, 0), mask


def applied(text, rows, mask, memory=(), weights=None):
    """What a rule of a config makes of a cohort."""
    reduce = robust_aggregation.parse_rule(text).reduce
    weights = mask.astype(np.float32) if weights is None else np.where(mask, weights, 0).astype(np.float32)
    contributions = jax.vmap(lambda row, w: reduce.map(row, w, None))(rows, weights)
    if reduce.combine == "add":
        contributions = jax.tree.map(lambda x: jnp.sum(x, 0), contributions)
    return np.asarray(jax.jit(lambda c: reduce.finalize(c, memory, None)[0])(contributions))


@pytest.mark.parametrize("name", NAIVE)
def test_a_rule_is_its_definition_over_those_that_are_there(name):
    takes = "" if name in ("median", "geometric_median") else "(attackers=0.25)"
    for seed, absent in enumerate([(), (1, 7), (3, 4, 5)]):
        rows, mask = cohort(seed, absent)
        f = int(0.25 * mask.sum())
        found = applied(f"{name}{takes}", rows, mask)
        np.testing.assert_allclose(found, NAIVE[name](rows[mask].astype(np.float64), f), atol=2e-5)
        assert np.abs(found).max() < 3, "far ones do not draw it away"
    if name == "geometric_median":
        smoothed = naive_geometric_median(rows[mask].astype(np.float64), 0, 2.0)
        np.testing.assert_allclose(applied("geometric_median(smoothing=2.0)", rows, mask), smoothed, atol=2e-5)


def test_clipping_and_bounding():
    rows, mask = cohort(0, (5,))
    x, v = rows[mask].astype(np.float64), np.full(D, 0.5)
    shrunk = [(row - v) * min(1, 2 / np.linalg.norm(row - v)) for row in x]
    found = applied("centred_clipping(radius=2.0)", rows, mask, jnp.asarray(v, jnp.float32))
    np.testing.assert_allclose(found, v + np.mean(shrunk, 0), atol=1e-5)
    again = applied("centred_clipping(radius=2.0)", rows, mask, jnp.asarray(found))
    twice = applied("centred_clipping(radius=2.0, iterations=2)", rows, mask, jnp.asarray(v, jnp.float32))
    np.testing.assert_allclose(twice, again, atol=1e-5)
    middle = jnp.asarray(np.median(x, 0), jnp.float32)  # where class means have no memory
    of_middle = applied("centred_clipping(radius=2.0)", rows, mask, middle)
    np.testing.assert_allclose(applied("centred_clipping(radius=2.0)", rows, mask), of_middle, atol=1e-5)
    bounded = [row * min(1, 2 / np.linalg.norm(row)) for row in x]
    np.testing.assert_allclose(applied("norm_bound(bound=2.0)", rows, mask), np.mean(bounded, 0), atol=1e-5)
    weights = np.arange(1.0, C + 1)
    weighted = applied("norm_bound(bound=2.0)", rows, mask, weights=weights)
    np.testing.assert_allclose(weighted, np.average(bounded, 0, weights[mask]), atol=1e-5)
    transform = robust_aggregation.parse_rule("norm_bound(bound=3.0)")
    lifted = jax.vmap(lambda row, w: transform.reduce.map(row, w, None))(rows, mask * 1.0)
    (clipped, number) = transform.reduce.finalize(jax.tree.map(lambda x: jnp.sum(x, 0), lifted), (), None)[2]["norm_bound/clipped"]
    assert (clipped, number) == (np.sum(np.linalg.norm(x, axis=1) > 3), len(x))
    with pytest.raises(ValueError, match="rule 'norm_bound' is for deltas; fedproto sends class means"):
        transform.check("fedproto", UplinkValue((), ((rows, weights),)))


def test_mixing_stands_before_a_rule():
    rows, mask = cohort(1, (2, 9))
    x = rows[mask].astype(np.float64)
    f = int(0.3 * len(x))
    near = [sorted(range(len(x)), key=lambda j, i=i: np.sum((x[i] - x[j]) ** 2))[: len(x) - f] for i in range(len(x))]
    mixed = np.array([x[chosen].mean(0) for chosen in near])
    np.testing.assert_allclose(applied("mixing(attackers=0.3) | median", rows, mask), np.median(mixed, 0), atol=1e-5)


def test_distances_of_honest_ones_do_not_feel_a_far_attacker():
    rows, mask = cohort(2, ())
    rows = rows * np.float32(1e-3)
    rows[0], rows[1] = 1e6, 3e19  # the square of the second is not finite in float32
    found = np.asarray(squared_distances(rows, mask))
    for i, j in itertools.combinations(range(3, C), 2):
        np.testing.assert_allclose(found[i, j], np.sum((rows[i].astype(float) - rows[j]) ** 2), rtol=1e-4)
    assert np.isinf(found[1, 2:]).all()
    assert np.abs(applied("krum", rows, mask)).max() < 1


def test_attackers_are_always_less_than_half():
    rows, mask = np.ones((C, D), np.float32), np.arange(C) < 4
    np.testing.assert_array_equal(applied("trimmed_mean(attackers=0.49999)", rows, mask), np.ones(D))
    assert robust_aggregation.count_attackers(jnp.ones(300, bool), 0.21) == (300, 63), "float32 has a little less"
    np.testing.assert_array_equal(applied("median", rows * np.float32(3e38), mask), np.full(D, np.float32(3e38)))


def test_nobody_gives_zero():
    rows, mask = np.zeros((C, D), np.float32), np.zeros(C, bool)
    for name in ("median", "trimmed_mean", "krum", "multi_krum", "bulyan", "geometric_median", "norm_bound", "mixing | median"):
        np.testing.assert_array_equal(applied(name, rows, mask), np.zeros(D), name)
    clipping, centre = robust_aggregation.parse_rule("centred_clipping").reduce, jnp.arange(D, dtype=jnp.float32)
    found, memory, _ = clipping.finalize((rows, mask.astype(np.float32)), centre, None)
    np.testing.assert_array_equal(found, np.zeros(D), "the last round's step is not taken again")
    np.testing.assert_array_equal(memory, centre)
    found, memory, _ = clipping.finalize((rows, np.ones(C, np.float32)), centre, None)
    np.testing.assert_array_equal(memory, found)
    assert np.any(found != centre), "with somebody it is the next round's center"


@pytest.mark.parametrize("name", ["krum", "multi_krum", "bulyan", "mixing"])
def test_who_is_there_is_chosen_where_all_distances_overflow(name):
    """The first three clients are absent; the others are too far apart for float32, and each has 1 at its second place."""
    rows, mask = np.zeros((C, D), np.float32), np.arange(C) > 2
    rows[mask, 0], rows[mask, 1] = 1e20 * (np.arange(3, C) - 7.5), 1
    assert np.isinf(np.asarray(squared_distances(rows, mask))[~np.eye(C, dtype=bool)]).all()
    found = applied(f"{name}(attackers=0.1)" + " | median" * (name == "mixing"), rows, mask)
    assert found[1] == 1
    if name == "multi_krum":
        np.testing.assert_allclose(found[0], np.mean(rows[3:12, 0]), rtol=1e-5)


def test_the_geometric_median_multiplies_in_full_precision():
    with jax.default_matmul_precision(None):
        text = str(jax.make_jaxpr(robust_aggregation.geometric_median())(jnp.zeros((C, D)), jnp.ones(C, bool)))
    assert text.count("dot_general") == text.count("Precision.HIGHEST, Precision.HIGHEST") == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mixing", "mixing returns a vector for every client; add a rule after it"),
        ("mixing | norm_bound", "norm_bound streams, so that no rule can precede it"),
        ("norm_bound | median", "norm_bound cannot precede another rule; mixing can"),
        ("krum(attackers=0.5)", "attackers"),
        ("krm", "Did you mean 'krum'"),
    ],
)
def test_a_senseless_rule_is_refused_in_a_line(text, says):
    with pytest.raises(ValueError, match=says):
        robust_aggregation.parse_rule(text)


def test_of_vectors_that_are_as_good_the_lowest_id_is_taken_whatever_the_plan():
    """With so few clients a score of Krum is one distance, and the two nearest have the same."""
    text, clients = "krum(attackers=0.0)", 3
    nets = []
    for plan in ((1, 1), (2, 1)):
        transforms = [robust_aggregation.parse_rule(text)]
        sim = toy.simulate("fedavg", transforms=transforms, leave_out=True, statistics=False, cohort=clients, plan=plan)
        nets.append([jax.device_get(unwrap(sim.run_rounds(sim.init(seed), 1)[0].server).net.params) for seed in range(3)])
    chex.assert_trees_all_close(*nets, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("same", r"same' returned an array \[5, 2\]; expected a real array \[2\]"),
        ("pair", r"pair' returned tuple; expected a real array \[2\]"),
        ("first | median", r"first', which precedes another, returned an array \[2\]; expected a real array \[5, 2\]"),
    ],
)
def test_an_own_rule_with_another_shape_is_refused_in_a_line(tmp_path, text, says):
    file, (name, *rest) = tmp_path / "own.py", text.split(" ", 1)
    bodies = {"same": "rows", "pair": "(rows[0], there)", "first": "rows[0]"}
    file.write_text("".join(f"def {name}():\n    return lambda rows, there: {body}\n\n" for name, body in bodies.items()))
    with pytest.raises(ValueError, match=says):
        applied(" ".join([f"{file}:{name}", *rest]), np.ones((5, 2), np.float32), np.ones(5, bool))


def test_an_own_reduction_with_another_shape_is_refused_in_a_line(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "import jax.numpy as jnp\nfrom fedjax_core.uplink.transform import UplinkTransform, VectorReduce\n\n"
        "def finalize(joined, memory, key):\n"
        "    total, weight = joined\n    return jnp.sum(total), memory, {}\n\n"
        "def mine():\n    return UplinkTransform('rule', 'mine', reduce=VectorReduce(finalize=finalize))\n"
    )
    sim = toy.simulate("fedavg", transforms=[robust_aggregation.parse_rule(f"{file}:mine")])
    with pytest.raises(ValueError, match=r"rule 'mine', reducing, returned an array \[\]; expected a real array \["):
        sim.run_rounds(sim.init(0), 1)


def test_an_own_rule_from_a_file_and_a_rule_over_classes(tmp_path):
    """FedProto's class means, of which each class has its own holders: the median of these."""
    file = tmp_path / "own.py"
    file.write_text("import jax.numpy as jnp\n\ndef third(scale: float = 1.0):\n    return lambda rows, there: scale * rows[2]\n")
    rows, mask = cohort(3, ())
    np.testing.assert_allclose(applied(f"{file}:third(scale=2.0)", rows, mask), 2 * rows[2], rtol=1e-6)
    sim = toy.simulate("fedproto", transforms=[robust_aggregation.parse_rule("median")], leave_out=True, cohort=8)
    plain = toy.simulate("fedproto", cohort=8)
    found, expected = (jax.device_get(s.run_rounds(s.init(0), 1)[0].server) for s in (sim, plain))
    np.testing.assert_array_equal(found.inner.known, expected.known)
    apart = np.abs(found.inner.means - expected.means).max(1)
    assert np.all((apart > 1e-5) & (apart < 1)), "another mean of the same classes"


@pytest.mark.parametrize(
    ("text", "theirs"),
    [
        ("median", lambda b, f: b.Median()),
        ("trimmed_mean(attackers=0.25)", lambda b, f: b.TrMean(f)),
        ("krum(attackers=0.25)", lambda b, f: b.Krum(f + 1)),  # which adds up one distance more than the paper, n - f - 1
        ("multi_krum(attackers=0.25)", lambda b, f: b.MultiKrum(f)),
        ("geometric_median(iterations=200)", lambda b, f: b.GeometricMedian(1e-6, 200)),
        ("centred_clipping(radius=2.0, iterations=3)", lambda b, f: b.CenteredClipping(None, 3, 2.0)),
        ("mixing(attackers=0.25) | median", lambda b, f: lambda rows: b.Median()(b.NNM(f)(rows))),
    ],
)
def test_a_rule_is_that_of_byzfl(text, theirs, monkeypatch):
    """On rows of which as many are far away as may be, so that Krum's and multi-Krum's choice hangs on no single distance. Of its
    package the aggregators alone are imported, without torchvision."""
    spec = importlib.util.find_spec("byzfl")
    if spec is None:
        pytest.skip("byzfl is not installed; pip install --no-deps byzfl==0.0.11, beside the extra 'reference'")
    monkeypatch.setitem(sys.modules, "byzfl", importlib.util.module_from_spec(spec))
    with warnings.catch_warnings(action="ignore"):
        byzfl = importlib.import_module("byzfl.aggregators")
    for seed in range(3):
        rows, mask = cohort(seed, ())
        rows[2] -= 30
        memory = jnp.zeros(D) if text.startswith("centred") else ()
        found = theirs(byzfl, int(0.25 * C))(rows.astype(np.float64))
        np.testing.assert_allclose(applied(text, rows, mask, memory), found, atol=2e-4)


def test_bulyan_averages_the_nearest_values_where_values_tie():
    """Values worked by hand, then many small integers, as copies of one vector make them."""
    column, everyone = np.array([[6, 2, 3, 2, 3, -1, 7]], np.float32).T, np.ones(7, bool)
    np.testing.assert_allclose(robust_aggregation.bulyan(attackers=0.2)(column, everyone), [8 / 3], rtol=1e-6)
    column = np.array([[-3, -3, -1, 0, 9, 9, 9]], np.float32).T
    np.testing.assert_allclose(robust_aggregation._nearest_mean(column, everyone, 3), [-4 / 3], rtol=1e-6)
    rng, nearest_mean = np.random.default_rng(0), jax.jit(robust_aggregation._nearest_mean)
    for n in (1, 2, 3, 6, 7, 12, 13):
        rows, mask = rng.integers(-4, 5, (13, 60)).astype(np.float32), rng.permutation(13) < n
        for number in range(1, n + 1):
            expected = [mean_of_nearest(column, number) for column in rows[mask].T]
            found = nearest_mean(rows, mask, number)
            np.testing.assert_allclose(found, expected, atol=2e-6, err_msg=f"{number} of {n}")


def test_of_values_equally_far_from_the_median_bulyan_favours_no_side():
    """Such values are usual where uplinks lie on a grid."""
    rows = np.random.default_rng(0).integers(-2, 3, (20, 400)).astype(np.float32)
    mask = np.ones(20, bool)
    rule = jax.jit(robust_aggregation.bulyan(attackers=0.2))
    np.testing.assert_allclose(rule(-rows, mask), -rule(rows, mask), atol=1e-6)
    assert np.any(rule(rows, mask))


@pytest.mark.parametrize(("rows", "columns"), [(1, 3), (2, 1), (13, 300)])
def test_columns_are_in_order(rows, columns):
    x = np.random.default_rng(rows).normal(size=(rows, columns)).astype(np.float32)
    x[:, 0] = np.round(x[:, 0])  # some are equal
    x[-1, -1] = np.inf
    np.testing.assert_array_equal(jax.jit(robust_aggregation.sort_columns)(x), np.sort(x, 0))
    np.testing.assert_array_equal(jax.vmap(robust_aggregation.sort_columns)(np.stack([x, -x])), np.sort([x, -x], 1))


def test_many_rows_are_in_order():
    x = np.random.default_rng(0).normal(size=(robust_aggregation.MAX_NETWORK_ROWS + 1, 2)).astype(np.float32)
    np.testing.assert_array_equal(robust_aggregation.sort_columns(x), np.sort(x, 0))


def test_a_network_alone_compares_on_a_cpu():
    text = jax.jit(robust_aggregation.sort_columns).lower(np.zeros((8, 4), np.float32)).as_text()
    assert "stablehlo.minimum" in text
    assert "stablehlo.sort" not in text


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (
            "mine():\n    return UplinkTransform('privacy', 'mine')",
            ValueError,
            "mine must return .* of kind 'rule', its kind is 'privacy'",
        ),
        (
            "mine(uplinks, mask):\n    return uplinks[0]",
            TypeError,
            "needs the option 'uplinks'.* called with options alone; what it",
        ),
    ],
)
def test_what_is_no_builder_of_a_rule_is_told(tmp_path, body, error, message):
    file = tmp_path / "own.py"
    file.write_text(f"from fedjax_core.uplink.transform import UplinkTransform\n\ndef {body}\n")
    with pytest.raises(error, match=message):
        robust_aggregation.parse_rule(f"{file}:mine")


def test_an_own_transform_is_named_as_a_rule(tmp_path):
    """It changes what each client sends; the mean stays."""
    file = tmp_path / "own.py"
    file.write_text(
        "import optax\nfrom fedjax_core.uplink.transform import TransformOutput, UplinkTransform\n\n"
        "def halved(by: float = 2.0):\n"
        "    def send(value, client, state):\n"
        "        return TransformOutput(value._replace(deltas=optax.tree.scale(1 / by, value.deltas)))\n\n"
        "    return UplinkTransform('rule', 'halved', send=send)\n"
    )
    sims = [toy.simulate("fedavg", transforms=[robust_aggregation.parse_rule(f"{file}:halved(by={by})")]) for by in (1.0, 2.0)]
    before = jax.device_get(unwrap(sims[0].init(0).server)).net.params
    whole, half = (jax.device_get(unwrap(sim.run_rounds(sim.init(0), 1)[0].server)).net.params for sim in sims)
    chex.assert_trees_all_close(jax.tree.map(lambda a, b: (a + b) / 2, before, whole), half, atol=1e-6)
