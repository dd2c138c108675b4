"""Membership inference by scores: rates against counts, the ratio against its formula, a run that remembers."""

import dataclasses
import importlib.util
from pathlib import Path
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest

from configs import centralized, fedavg
from fedjax_core import audit, experiment
from fedjax_core.audit import membership
from fedjax_core.commands import audit as command
from fedjax_core.storage.json_files import read_json, write_json
from tests import toy

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax_privacy") is None, reason="jax-privacy is not installed")


def test_true_positives_are_counted_at_rates_of_false_ones():
    others = np.arange(1000.0)
    members = np.where(np.arange(200) < 50, 2000.0, 500.5)
    found = audit.infer_membership(members, others)
    assert (found.members, found.others) == (200, 1000)
    assert found.area == pytest.approx(0.25 + 0.75 * 0.501)
    for estimate, low, high in found.true_positives.values():
        assert low < estimate < high
        assert estimate == pytest.approx(0.25)
        assert high - low == pytest.approx(2 * 1.96 * np.sqrt(0.25 * 0.75 / 200), rel=0.25), "a binomial's"


def test_thresholds_and_ties_by_hand():
    """At most one, and ten, of 1000 others are above the thresholds 998 and 989; the area counts a tie half."""
    found = audit.infer_membership(np.array([998, 998.5, 999.5, 0]), np.arange(1000.0))
    assert [estimate for estimate, _, _ in found.true_positives.values()] == [0.5, 0.75]
    assert audit.infer_membership(np.ones(2), np.array([0.0, 1.0])).area == 0.75


def test_a_confidence_is_the_log_of_the_odds():
    logits, y = np.array([[2.0, 0.5, -1.0], [0.0, 1.0, 3.0]]), np.array([0, 1])
    p = np.exp(logits[[0, 1], y]) / np.exp(logits).sum(1)
    np.testing.assert_allclose(membership._logit_confidence(jnp.asarray(logits), jnp.asarray(y)), np.log(p / (1 - p)), rtol=1e-5)


def test_scores_that_are_nan_are_refused():
    """They looked like those of a model that leaks nothing: area 0.5, epsilon 0."""
    good, bad = np.arange(4.0), np.array([0.0, np.nan, 2.0, np.nan])
    for members, others, said in ((bad, good, "2 of the 4 scores of members"), (good, bad, "2 of the 4 scores of others")):
        with pytest.raises(ValueError, match=f"{said} are NaN"):
            audit.infer_membership(members, others)
    with pytest.raises(ValueError, match="there are no members"):
        audit.infer_membership(good[:0], good)
    with pytest.raises(ValueError, match="2 of the 4 scores of canaries are NaN"):
        audit.audit_scores(bad, good > 1, delta=1e-5)


def test_the_likelihood_ratio_leaves_out_models_that_had_the_example():
    rng = np.random.default_rng(0)
    shadows, was_in = rng.normal(size=(8, 5)), np.arange(8)[:, None] < 4
    was_in = np.broadcast_to(was_in, (8, 5)).copy()
    target = rng.normal(size=5)
    deviation = np.sqrt(shadows[4:].var(0, ddof=1).mean())
    expected = (target - shadows[4:].mean(0)) / deviation
    np.testing.assert_allclose(audit.score_by_shadows(target, np.where(was_in, 99.0, shadows), was_in), expected)
    with pytest.raises(ValueError, match="fewer than two shadow models"):
        audit.score_by_shadows(target, shadows, np.arange(8)[:, None] < np.full(5, 7))


def test_an_example_of_several_clients_is_in_one_model_of_a_pair(monkeypatch):
    lists = [np.arange(10), np.arange(5, 15), np.array([0, 1, 14]), np.arange(20, 27)]
    data, built = dataclasses.replace(toy.data(), train_index=lists), []
    simulator = mock.Mock(**{"run_rounds.return_value": (None, None)})
    monkeypatch.setattr(membership, "compute_confidences", lambda simulator, state, part: np.zeros(len(part.y)))
    _, trained_on = membership.train_shadows(lambda halves: built.append(halves.train_index) or simulator, data, 1, 4)
    assert np.all(trained_on[::2] ^ trained_on[1::2])
    for first, rest in (built[:2], built[2:]):
        assert not np.intersect1d(np.concatenate(first), np.concatenate(rest)).size
        for own, *halves in zip(lists, first, rest, strict=True):
            np.testing.assert_array_equal(np.sort(np.concatenate(halves)), own)
        assert [len(first[i]) for i in (0, 1, 3)] == [5, 5, 4]
    assert len({call.args[0] for call in simulator.init.call_args_list}) == 4  # seeds
    assert not np.array_equal(trained_on[0], trained_on[2])


def test_an_overfitted_run_is_found_out_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch):
    config = fedavg.get_config("smoke")
    config.rounds, config.data.examples, config.data.clients, config.cohort.fraction = 40, 60, 4, 1.0
    config.method.update(epochs=5, batch=15)
    config.evaluation.every, config.evaluation.scopes = 40, ("global",)
    experiment.execute(config, str(tmp_path), progress=False)
    arguments = [str(tmp_path), "--shadows=4", "--canaries=60", "--invert=cosine", "--iterations=20"]
    assert command.main(arguments) == 0
    said = capsys.readouterr().out
    results = read_json(tmp_path / "audit" / "audit.json")
    assert results["round"] == 40
    for name in ("loss", "likelihood_ratio"):
        assert results[name]["members"] == 60
        assert results[name]["area"] > 0.55
        assert f"area {results[name]['area']:.3f}" in said
    assert results["canaries"]["upper"] is None
    assert results["canaries"]["lower"] > 0, "mislabelled examples that are remembered"
    assert len(results["inversion"]["psnr"]) == 1
    assert (tmp_path / "audit" / "inversion.png").exists()
    for wrong in ("--canaries=-1", "--shadows=2", "--shadows=5"):
        assert command.main([str(tmp_path), wrong]) == 2
    assert command.main([str(tmp_path / "nothing")]) == 1
    for option in ("--client=1", "--examples=2", "--iterations=9"):
        assert command.main([str(tmp_path), option]) == 2
        assert f"{option} needs --invert" in capsys.readouterr().err
    (tmp_path / "taken").touch()
    monkeypatch.setattr(audit, "score_by_loss", lambda *of: pytest.fail("the directory is made before the first attack"))
    assert command.main([str(tmp_path), f"--out={tmp_path / 'taken'}"]) == 1
    assert "cannot make the directory" in capsys.readouterr().err


def test_a_pooled_method_is_audited_whatever_its_cohort(tmp_path: Path):
    config = centralized.get_config("smoke")
    config.rounds, config.data.examples, config.data.clients, config.models = 1, 60, 4, ("mlp(widths=(4,))",)
    config.cohort.size, config.cohort.fraction = 2, None
    experiment.execute(config, str(tmp_path), progress=False)
    results = command.audit_run(tmp_path, shadows=4, canaries=20)
    assert results["likelihood_ratio"]["members"] == 60
    assert results["canaries"]["canaries"] == 20


def test_parts_of_an_audit_are_kept(tmp_path: Path, monkeypatch):
    config = fedavg.get_config("smoke")
    config.rounds, config.data.examples, config.data.clients, config.models = 1, 60, 4, ("mlp(widths=(4,))",)
    experiment.execute(config, str(tmp_path), progress=False)
    file = tmp_path / "audit" / "audit.json"
    monkeypatch.setattr(command, "_attack_by_shadows", lambda *of: {"area": 0.5})
    monkeypatch.setattr(command, "_audit_by_canaries", lambda *of: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        command.audit_run(tmp_path, shadows=4, canaries=4)
    assert read_json(file)["likelihood_ratio"] == {"area": 0.5, "shadows": 4}
    assert "likelihood_ratio" in command.audit_run(tmp_path)
    write_json(file, read_json(file) | {"loss": {}})  # of another model
    assert "likelihood_ratio" not in command.audit_run(tmp_path)
