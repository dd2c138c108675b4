"""Epsilon is dp-accounting's own, noise is calibrated, and what cannot be accounted for is refused."""

import importlib.util

import numpy as np
import pytest

from fedjax_core.privacy import PrivacyConfig, Release, accounting, calibrate_noise, compute_epsilon

needs_library = pytest.mark.skipif(importlib.util.find_spec("dp_accounting") is None, reason="dp-accounting is not installed")
MANY = Release("gaussian", "poisson", 10, 1000)


@needs_library
def test_epsilon_is_that_of_the_accountants():
    import dp_accounting as dp

    replaced = dp.NeighboringRelation.REPLACE_ONE
    fixed = dp.rdp.RdpAccountant(neighboring_relation=replaced)
    fixed.compose(dp.SampledWithoutReplacementDpEvent(1000, 10, dp.GaussianDpEvent(1.0)), 100)
    assert compute_epsilon(Release("gaussian", "fixed", 10, 1000), 2.0, 100, 1e-5, "rdp") == pytest.approx(
        fixed.get_epsilon(1e-5), rel=1e-9
    )
    poisson = dp.rdp.RdpAccountant().compose(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0)), 100)
    assert compute_epsilon(MANY, 1.0, 100, 1e-5, "rdp") == pytest.approx(poisson.get_epsilon(1e-5), rel=1e-9)
    tight = dp.pld.PLDAccountant(value_discretization_interval=3e-4).compose(
        dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0)), 100
    )
    assert compute_epsilon(MANY, 1.0, 100, 1e-5, "pld") == pytest.approx(tight.get_epsilon(1e-5), rel=2e-3)
    assert compute_epsilon(MANY, 1.0, 100, 1e-5, "pld") >= tight.get_epsilon(1e-5) * 0.9999, "rounded upwards"
    assert compute_epsilon(MANY, 1.0, 0, 1e-5, "pld") == 0


@needs_library
def test_known_values():
    """Gaussian alone: the exact epsilon of multiplier 1 at delta 1e-5 is 4.3776 (Balle and Wang, 2018); Laplace adds up."""
    assert compute_epsilon(Release("gaussian", "all"), 1.0, 1, 1e-5, "pld") == pytest.approx(4.3776, rel=1e-3)
    assert compute_epsilon(Release("gaussian", "local"), 2.0, 1, 1e-5, "pld") == pytest.approx(4.3776, rel=1e-3), "twice the clip"
    assert compute_epsilon(Release("laplace", "local"), 4.0, 3, 0.0, "rdp") == pytest.approx(1.5)
    assert planned("local_laplace", noise=4.0, delta=0.0).make_ledger(5, 50, "poisson").epsilon(3) == pytest.approx(1.5)
    import dp_accounting as dp

    laplace = dp.rdp.RdpAccountant().compose(dp.LaplaceDpEvent(2.0), 300).get_epsilon(1e-5)
    assert laplace < 150
    assert compute_epsilon(Release("laplace", "local"), 4.0, 300, 1e-5, "rdp") == pytest.approx(laplace)


@needs_library
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_calibrated_noise_is_the_least(accountant):
    z = calibrate_noise(MANY, 1.5, 1e-5, 50, accountant)
    assert compute_epsilon(MANY, z, 50, 1e-5, accountant) <= 1.5 < compute_epsilon(MANY, z - 3e-4, 50, 1e-5, accountant)
    assert z == pytest.approx(round(z, 4))


@needs_library
@pytest.mark.parametrize(
    ("cohort", "population", "rounds", "wanted"),
    [(1000, 10**7, 3000, 0.4787), (5000, 10**6, 2000, 0.8639), (1000, 10**6, 2000, 0.6229)],
    ids=["cifar10", "stackoverflow", "language"],
)
def test_noise_of_pfl_research(cohort, population, rounds, wanted):
    """Settings of pfl-research's benchmarks: epsilon 2, delta 1e-6, its noise cohorts and populations (CIFAR-10 names none, so
    that its default of 10^7 holds). `wanted` is the multiplier by its own way: privacy loss distributions of dp-accounting 0.6.0,
    Poisson sampling, discretised at 1e-4; found once."""
    release = Release("gaussian", "poisson", cohort, population)
    assert calibrate_noise(release, 2.0, 1e-6, rounds, "pld") == pytest.approx(wanted, rel=0.01)


def planned(name="gaussian", **given):
    fields = {"name": name, "clip": 1.0, "noise": 1.0, "epsilon": None, "delta": 1e-5, "cohort": None, "population": None}
    fields |= {"accountant": "rdp", "min_separation": None, "participations": None, "rounds": 40}
    return PrivacyConfig(**fields | given)


@needs_library
def test_a_run_says_what_it_has_spent():
    spent = planned().make_ledger(5, 50, "poisson")
    assert spent.epsilon(40) == compute_epsilon(Release("gaussian", "poisson", 5, 50), 1.0, 40, 1e-5, "rdp")
    assert "epsilon" in spent.describe(3)
    assert "add or remove one client" in spent.describe(3)
    assert planned().make_ledger(5, 50, "fixed").facts()["neighbours"] == "replace one client"
    assert planned().make_ledger(50, 50, "fixed").release.sampling == "all"
    larger = planned(cohort=500, population=10**6, accountant="pld").make_ledger(5, 50, "poisson")
    assert (larger.release.cohort, larger.release.population) == (500, 10**6)
    assert "poisson cohorts of 500 of 1000000 (deployment; simulated 5 of 50), by pld" in larger.describe(40)
    assert "poisson cohorts of 5 of 50, by rdp" in spent.describe(3)
    assert larger.facts().items() >= {"cohort": 500, "simulated_cohort": 5, "simulated_population": 50}.items()
    assert "simulated_cohort" not in spent.facts()
    known = [larger.epsilon(done) for done in range(33, 41)]
    assert len(set(known)) < 8, "PLD is asked for a few numbers of rounds"
    assert known == sorted(known)
    assert known[-1] == compute_epsilon(larger.release, 1.0, 40, 1e-5, "pld")


def test_what_cannot_be_accounted_for_is_refused(monkeypatch):
    for given, says in [
        ({"cohort": 3}, "privacy.cohort=3 must be at least the simulated cohort, 5"),
        ({"cohort": 60}, "must be at most the population, 50; set privacy.population"),
        ({"cohort": 20, "population": 40}, "privacy.population=40 must be at least the simulated population, 50"),
        ({"accountant": "pld"}, "cannot account for cohorts of a fixed size"),
    ]:
        with pytest.raises(ValueError, match=says):
            planned(**given).make_ledger(5, 50, "fixed", calibrate=False)
    for given in ({"cohort": 50}, {"name": "local_gaussian"}):  # also where the deployment has everybody in every round
        with pytest.raises(ValueError, match="epsilon is not known for cohorts that are drawn this way"):
            planned(**given).make_ledger(5, 50, "", calibrate=False)
    missing = lambda name: (_ for _ in ()).throw(ImportError(name))
    monkeypatch.setattr(accounting.importlib, "import_module", missing)
    with pytest.raises(ValueError, match=r"needs dp-accounting for its epsilon: pip install 'fedjax-core\[privacy\]'"):
        planned(noise=1.01).make_ledger(5, 51, "poisson")
    assert planned(noise=None, epsilon=2.0).make_ledger(5, 50, "poisson", calibrate=False).noise == 1


@needs_library
@pytest.mark.parametrize("name", ["gaussian", "local_gaussian", "local_laplace"])
def test_very_little_noise_is_accounted_for_at_once(name):
    """By RDP, for PLD would need memory for each thousandth of a loss of thousands and more."""
    for noise in (1e-3, 1e-200):
        spent = planned(name, noise=noise, accountant=None).make_ledger(5, 50, "poisson")
        assert spent.accountant == "rdp"
        assert spent.epsilon(40) > 1000
        with pytest.raises(ValueError, match=r"privacy\.accountant='pld' needs too much memory for a noise multiplier of"):
            planned(name, noise=noise, accountant="pld").make_ledger(5, 50, "poisson")
    if name == "gaussian":
        little = planned(noise=None, epsilon=1e6, accountant=None).make_ledger(5, 50, "poisson")
        assert little.accountant == "rdp"
        assert little.epsilon(40) == pytest.approx(1e6, rel=1e-2)
    assert planned(name, accountant=None).make_ledger(5, 50, "poisson").accountant == "pld"


def test_release_names_whom_it_protects():
    assert {Release("gaussian", name).relation for name in accounting.RELATIONS} == set(accounting.RELATIONS.values())
    np.testing.assert_equal(len(set(accounting.RELATIONS.values())), 4)
