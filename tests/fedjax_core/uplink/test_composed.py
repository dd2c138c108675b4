"""Attacks, compression and rules together: from a config to a run's files, the contract of methods, and what makes no sense."""

import json

import jax
import numpy as np
import pytest

from configs import base
from fedjax_core import experiment, nn
from fedjax_core.data import poisoning
from fedjax_core.experiment import config_warnings
from fedjax_core.testing import method_contract
from fedjax_core.testing.case import Case
from fedjax_core.uplink import UplinkTransform, attacks, compression, robust_aggregation
from tests import toy


def config(**changes):
    """FedAvg on the toy data; `changes` by dotted path, with two underscores for the dot."""
    settings = base.get_config("smoke")
    settings.method = dict(name="fedavg", epochs=1, batch=4)
    settings.models = ("mlp(widths=(6,))",)
    settings.plan.devices = 1
    for path, value in changes.items():
        above, last = path.split("__")
        settings[above][last] = value
    return settings


def test_a_run_with_all_of_them_says_so_in_its_files(tmp_path):
    settings = config(
        adversary__attack="backdoor(target=1, size=2) | scaled(factor=-5.0)",
        adversary__fraction=0.25,
        compression__uplink="quantise(bits=4, bucket=64)",
        compression__downlink="bfloat16",
        aggregation__rule="norm_bound(bound=0.01)",
        evaluation__every=1,
    )
    settings.rounds = 2
    done = experiment.execute(settings, str(tmp_path / "run"), progress=False, data=toy.data(), console=lambda text: None)
    recorded = json.loads((tmp_path / "run" / "run.json").read_text())
    assert recorded["adversary"] == {
        "attack": settings.adversary.attack,
        "clients": attacks.draw_attackers(toy.CLIENTS, 0.25, settings.data.seed).tolist(),
    }
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (last,) = [line for line in lines if line.get("round") == 2 and "server/left_out" in line]
    assert last["server/left_out"] == 0
    assert 0 < last["server/norm_bound/clipped"] <= 1
    assert 0 <= last["test/global/backdoor"] <= 1
    numbers = sum(leaf.size for leaf in jax.tree.leaves(done.state.server.inner.net))
    assert done.summary["facts"]["bytes_down"] == 2 * numbers
    assert done.summary["facts"]["bytes_up"] < numbers
    _, simulation, state = experiment.load(str(tmp_path / "run"), data=toy.data())
    assert simulation.evaluate(state).metrics["test/global/backdoor"] == pytest.approx(last["test/global/backdoor"])


def test_an_option_that_is_off_leaves_the_program_as_it_was():
    """Of a config that was written before there were such options, too."""
    texts = []
    for change in ("off", "lacks", "on"):
        settings = config(**({"aggregation__rule": "mean"} if change == "on" else {}))
        if change == "lacks":
            for section in ("adversary", "compression", "aggregation"):
                del settings[section]
        sim = experiment.build(settings, toy.data())
        state = jax.eval_shape(sim.compiled.programs.init_state, sim.spec.host_arrays, jax.random.key_data(jax.random.key(0)))
        texts.append(
            sim.compiled.programs.run_resident_rounds.lower(
                sim.spec.host_arrays, state, jax.ShapeDtypeStruct((), np.int32)
            ).as_text()
        )
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (dict(adversary__attack="alie"), "adversary.attack='alie', adversary.fraction=None: set both"),
        (dict(adversary__fraction=0.1), "set both, such as 'sign_flip' and 0.2, or neither"),
        (dict(adversary__attack="not_finite", adversary__fraction=0.1), "ends the run at once; set aggregation.not_finite"),
        (
            dict(adversary__attack="not_finite", adversary__fraction=0.1, aggregation__rule="mean", aggregation__not_finite="end"),
            "ends the run at once; set aggregation.not_finite='leave_out'$",
        ),
        (dict(compression__uplink="quantise(bits=9)"), r"bits=9 .*\[2, 8\]"),
        (dict(compression__uplink="quantise(bucket=4611686018427387904)"), r"bucket=4611686018427387904 .*\[1, 2\*\*20\]"),
        (dict(compression__downlink="top_k"), "compression.downlink='top_k' .*'float16', 'bfloat16'"),
        (dict(aggregation__not_finite="go on"), "aggregation.not_finite='go on' .*'leave_out', 'end'"),
        (
            dict(compression__uplink="sign(majority=True)", aggregation__rule="krum"),
            "compression 'sign' and rule 'krum' each replace the mean of uplinks; choose one of them",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason(changes, says):
    with pytest.raises(ValueError, match=says) as refused:
        experiment.resolve(config(**changes))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("privacy.level='example'", dict(privacy__level="example", privacy__mechanism="gaussian", aggregation__rule="median")),
        (
            "privacy.level='example'",
            dict(privacy__level="example", privacy__mechanism="gaussian", aggregation__not_finite="leave_out"),
        ),
        ("privacy.mechanism='skellam'", dict(privacy__mechanism="skellam")),
    ],
)
def test_attackers_that_are_not_finite_are_refused_where_nobody_is_left_out(field, changes):
    attack = dict(adversary__attack="not_finite", adversary__fraction=0.25)
    settings = config(**attack, **changes, privacy__clip=1.0, privacy__noise=1.0, privacy__delta=1e-5)
    settings.normalise, settings.method.weights = "unit", "uniform"
    with pytest.raises(ValueError, match=f"'not_finite' cannot be combined with {field}: a client that is not finite ends"):
        experiment.resolve(settings)


def test_two_backdoors_are_refused():
    attack = dict(adversary__attack="backdoor(target=1, size=2) | scaled | backdoor(target=0)", adversary__fraction=0.25)
    with pytest.raises(ValueError, match=r"two backdoors, backdoor\(target=1, size=2\) and backdoor\(target=0\)"):
        experiment.build(config(**attack), toy.data())


@pytest.mark.parametrize(
    ("attack", "says"),
    [
        (
            "alie | scaled(factor=9.0)",
            r"alie replaces all that an attacker sends, so scaled\(factor=9.0\) has no effect; give one of them",
        ),
        ("label_flip | mimic", "mimic replaces all that an attacker sends, so label_flip has no effect"),
        ("alie | inner_product", "inner_product replaces all that an attacker sends, so alie has no effect"),
    ],
)
def test_an_attack_that_replaces_uplinks_stands_alone(attack, says):
    with pytest.raises(ValueError, match=f"adversary.attack: {says}"):
        experiment.build(config(adversary__attack=attack, adversary__fraction=0.25), toy.data())


def test_statistics_that_stay_as_they_began_are_said(caplog):
    settings = config()
    settings.models, settings.statistics, settings.data.source = ("resnet8",), "freeze", "digits"
    settings.data.clients = 4
    experiment.build(settings)
    (line,) = [line for line in caplog.messages if line.startswith("statistics='freeze'")]
    assert "batch normalisation of resnet8, which has no weights, keeps mean 0 and variance 1" in line
    nets = {name: nn.build(name, 2, (8, 8, 1)) for name in ("resnet8", "mlp")}
    assert config_warnings.check_statistics("average", nets, False) == []
    assert len(config_warnings.check_statistics("freeze", nets, False)) == 1
    (line,) = config_warnings.check_statistics("freeze", {"mlp": nets["mlp"]}, False)
    assert line == "statistics='freeze': no network trains batch normalisation, so that nothing is frozen"
    assert config_warnings.check_statistics("freeze", {"mlp": nets["mlp"]}, True) == []  # one of a file may have some


def test_settings_that_do_nothing_are_said():
    """Ten clients of whom two attack; four of whom a fifth is none."""
    settings = config(adversary__attack="alie", adversary__fraction=0.2)
    said = lambda n, m: config_warnings.check_attack(experiment.resolve(settings), n, n, m)
    (line,) = said(10, 2)
    assert "of 10 clients a round 2 attack, for which alie takes z = 0, which is no attack; give it one" in line
    assert said(50, 24) == []
    settings.adversary.attack = "alie(z=1.0)"
    assert said(10, 2) == []
    (line,) = said(1, 0)
    assert line.endswith("alie(z=1.0) reads no other, and attackers send zeros; take sign_flip, or a larger cohort")
    settings.schedule = "fedasync"
    assert said(1, 0)[0].endswith("or a larger buffer (fedbuff)")
    settings.adversary.attack = "sign_flip"
    assert said(1, 0) == []
    of_rule = lambda text, there: config_warnings.check_rule(robust_aggregation.find_rules(text), there)
    (line,) = of_rule("mixing(attackers=0.3) | krum", 4)
    assert line.startswith("aggregation.rule='mixing(attackers=0.3) | krum': ")
    assert line.endswith("attackers=0.2 of the 4 clients of a round is less than one, so krum withstands none")
    (line,) = of_rule("bulyan(attackers=0.3)", 10)
    assert line.endswith("of the 10 clients of a round are 3, of which bulyan withstands 1: f attackers need 4 f + 3 clients")
    assert of_rule("bulyan(attackers=0.3)", 6)[0].endswith("are 1, of which bulyan withstands 0: f attackers need 4 f + 3 clients")
    for name in ("krum", "multi_krum"):
        (line,) = of_rule(f"{name}(attackers=0.4)", 10)
        assert line.endswith(f"are 4, of which {name} withstands 3: f attackers need 2 f + 3 clients")
        assert of_rule(f"{name}(attackers=0.4)", 9) == []
    assert of_rule("mixing(attackers=0.4) | bulyan(attackers=0.1)", 10) == []
    assert of_rule("mixing | krum(attackers=0.0)", 5) == of_rule("median", 1) == config_warnings.check_rule((), 1) == []


def test_privacy_of_data_that_were_counted_before_is_said():
    asked = dict(mechanism="gaussian", epsilon=8.0, delta=1e-3, clip=1.0)
    settings = config(**{f"privacy__{name}": value for name, value in asked.items()})
    settings.normalise = "unit"

    def said(source):
        settings.data.source = source
        return config_warnings.check_source(experiment.resolve(settings), source)

    assert said("digits") == []
    (line,) = said("diabetes")
    assert line.startswith("diabetes: the mean and deviation of its targets is read from all clients' training examples")
    (line,) = said("stackoverflow")
    assert "its vocabulary" in line
    table = "jsonl(path='rows.jsonl', x='text', y='label', clients='user'{})"
    assert said(table.format("")) == []
    (line,) = said(table.format(", words=50, length=8"))
    assert "its vocabulary" in line
    table = "csv(path='rows.csv', x=('age', 'town'), y='label', categorical='town', missing='mean')"
    towns, means = said(f"only(of={table!r}, classes=(0, 1))")
    assert "the list of a categorical column's values is read from all clients' training examples" in towns
    assert "the mean in place of a missing cell is read from all clients' training examples" in means
    assert config_warnings.check_source(experiment.resolve(config(data__source="diabetes")), "diabetes") == []


class Composed(Case):
    """A method whose uplinks pass transforms."""

    def __init__(self, name: str, attack: str, *transforms: UplinkTransform):
        super().__init__(toy.CASES[name].method, task=toy.CASES[name].task, mixed=toy.CASES[name].mixed)
        found = attacks.find_attacks(attack, poisoning.POISONS)
        evil = [attacks.make_attack(one.name, one(), (2, 5)) for one in found]
        self.transforms = [*evil, *transforms]

    def simulate(self, **settings):
        return super().simulate(transforms=self.transforms, leave_out=True, **settings)


CHECKS = (
    method_contract.check_plans_agree,
    method_contract.check_absent_client_changes_nothing,
    method_contract.check_checkpoint_resumes,
)


def test_a_sample_keeps_the_contract_of_methods():
    """Crafted in the stack, behind a compression that keeps something with clients, before mixing and a rule."""
    case = Composed(
        "fedavg",
        "alie(z=1.0)",
        compression.parse_compressor("power_sgd(rank=1)"),
        robust_aggregation.parse_rule("mixing | trimmed_mean"),
    )
    for check in CHECKS:
        check(case)


def test_class_means_keep_it_too():
    """Those of attackers with their sign turned, in few bits, behind a rule."""
    case = Composed(
        "fedproto", "sign_flip", compression.parse_compressor("quantise(bits=8)"), robust_aggregation.parse_rule("median")
    )
    method_contract.check_plans_agree(case)
