"""Attacks a finished run: what its model and one client's uplink tell about examples.

  fedjax-core audit runs/fedavg                                membership inference by losses
  fedjax-core audit runs/fedavg --shadows=8                    and by a likelihood ratio, which trains 8 models
  fedjax-core audit runs/dp_sgd --canaries=180                 trains once more, for a lower bound of epsilon
  fedjax-core audit runs/fedavg --invert=cosine --examples=2   images from one client's uplink

Writes audit/audit.json, and of an inversion audit/inversion.png, into the run's directory or into --out.
What an earlier audit of the same model found stays there.
The run's data must still be where it found them. docs/pages/audit.md explains the numbers.
"""

import copy
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_core import audit, experiment
from fedjax_core.algorithm import select_examples
from fedjax_core.atomic_files import reword_os_errors
from fedjax_core.audit import inversion, membership
from fedjax_core.commands.analyses.context import TRUST
from fedjax_core.commands.main import run_and_exit
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.data.target_types import require_classes
from fedjax_core.engine.simulator import Simulator
from fedjax_core.experiment.ledger import ExampleLedger, make_ledger
from fedjax_core.reporting import console
from fedjax_core.reporting.terminal import write_text
from fedjax_core.storage.json_files import read_json, to_json_values, write_json
from fedjax_core.task import Model

FILE, FIGURE = "audit.json", "inversion.png"
COMPARABLE = ("replace one client", "replace one client's data")  # relations of which a changed example is a case
DELTA = 1e-5  # of a run without privacy
STREAM_SEED = 1  # of canaries and shadow models, beside the run's own
SIMULATED = {  # by the inversion
    "optimizer.name": "sgd",
    "optimizer.sharpness": None,
    "optimizer.weight_decay": None,
    "loss": None,
    "regularizers": (),
    "augment": None,
    "drop_last": None,
}
SAME = 0.01  # sine of the angle between updates that differ by rounding alone
AFTER_TRAINING = ("privacy", "compression", "adversary", "aggregation")  # groups of fields: what happens to an uplink
CHANGE_LENGTH = {"optimizer.nesterov": None, "optimizer.clip": None}  # of the first step
CHANGE_LATER_STEPS = {**CHANGE_LENGTH, "optimizer.momentum": None, "optimizer.anneal": None}


def audit_run(
    run: str | os.PathLike,
    *,
    out: str | os.PathLike | None = None,
    shadows: int = 0,
    canaries: int = 0,
    invert: str | None = None,
    client: int = 0,
    examples: int = 1,
    iterations: int = 1000,
    done: int | None = None,
    trust: bool = False,
) -> dict[str, Any]:
    """Attacks a run.

    Args:
      out: where the files go; None: audit/ of the run's directory.
      shadows: shadow models of the likelihood ratio; 0: none.
      canaries: of a second training; 0: none.
      invert: the attack on one client's uplink, one of `inversion.ATTACKS`; None: none.
      client, examples: of the inversion: whose first examples.
      iterations: of the inversion's optimizer.
      done: the round to attack; None: as `experiment.load`.
      trust: as `experiment.load`.

    Returns:
      What is in audit.json.
    """
    config, simulator, state = experiment.load(run, done, trust=trust)
    folder, rounds = Path(run).expanduser() / "audit" if out is None else Path(out).expanduser(), int(state.round)
    members = np.concatenate(list(simulator.spec.data.train_index))
    parts = select_examples(simulator.spec.data.train, members), simulator.spec.data.test
    if simulator.spec.episodes is not None:
        raise ValueError(f"{run} was trained on episodes: its network has no classes of its own to attack")
    if experiment.resolve(config).is_for_texts:
        _check_texts(config, shadows, canaries, invert)
    if shadows:
        require_classes("audit: the likelihood ratio", simulator.spec.data.train.y, "leave --shadows out")
    if canaries:
        membership.import_auditing()
    attack = None if invert is None else _prepare_inversion(config, simulator, state, invert, client, examples, iterations)
    with reword_os_errors("make the directory", folder):
        folder.mkdir(parents=True, exist_ok=True)
    scores = [audit.score_by_loss(simulator, state, part) for part in parts]
    results: dict[str, Any] = {"round": rounds, "loss": _describe_scores(audit.infer_membership(*scores))}
    results = _read_earlier(folder / FILE, results) | results
    write_json(folder / FILE, results)  # after each part: what took hours is kept if the next one fails
    if shadows:
        results["likelihood_ratio"] = _attack_by_shadows(config, simulator, state, shadows, rounds) | {"shadows": shadows}
        write_json(folder / FILE, results)
    if canaries:
        results["canaries"] = _audit_by_canaries(config, simulator, canaries, rounds)
        write_json(folder / FILE, results)
    if attack is not None:
        results["inversion"] = attack(folder)
        write_json(folder / FILE, results)
    return results


def _check_texts(config: Any, shadows: int, canaries: int, invert: str | None) -> None:
    """Raises ValueError for attacks that need one array of inputs, or one class of each."""
    writes = experiment.read_instructions(config).options is None
    asked = {"shadows": shadows if writes else 0, "canaries": canaries, "invert": invert}
    if given := [f"--{name}={value}" for name, value in asked.items() if value]:
        attacked = "losses alone" if writes else "losses, alone or with --shadows,"
        raise ValueError(f"audit: {', '.join(given)}: of a run on texts the {attacked} are attacked; leave this out")


def _read_earlier(file: Path, results: dict[str, Any]) -> dict[str, Any]:
    """Returns an earlier audit of the same model, with the same round and losses; {} if there is none."""
    earlier = read_json(file, dict) if file.exists() else {}
    return earlier if all(earlier.get(name) == value for name, value in to_json_values(results).items()) else {}


def _describe_scores(scores: audit.MembershipScores) -> dict[str, Any]:
    rates = {f"true_positives_at_{rate:g}": list(values) for rate, values in scores.true_positives.items()}
    return {"members": scores.members, "others": scores.others, "area": scores.area} | rates


def _attack_by_shadows(config: Any, simulator: Simulator, state: Any, number: int, rounds: int) -> dict[str, Any]:
    data = simulator.spec.data
    values, trained_on = membership.train_shadows(
        lambda halves: _build_on(config, halves), data, rounds, number, int(config.seed) + STREAM_SEED
    )
    members = select_examples(data.train, np.concatenate(list(data.train_index)))
    target = np.concatenate([membership.compute_confidences(simulator, state, part) for part in (members, data.test)])
    ratios = audit.score_by_shadows(target, values, trained_on)
    return _describe_scores(audit.infer_membership(ratios[: len(members.y)], ratios[len(members.y) :]))


def _build_on(config: Any, data: FederatedData) -> Simulator:
    """Builds the run's simulation on other data; those of a pooled method have one client, of whom no cohort is drawn."""
    if data.clients == 1:
        config = copy.deepcopy(config)
        config.cohort.size = None
    return experiment.build(config, data)


def _audit_by_canaries(config: Any, simulator: Simulator, number: int, rounds: int) -> dict[str, Any]:
    inserted = audit.insert_canaries(simulator.spec.data, number, int(config.seed) + STREAM_SEED)
    trained = _build_on(config, inserted.data)
    upper, delta = _accounted_epsilon(config, trained, rounds)
    found = audit.audit_with_canaries(trained, inserted, rounds, seed=int(config.seed), delta=delta, upper=upper)
    return found._asdict() | {"upper": upper if np.isfinite(upper) else None, "is_violated": found.is_violated}


def _accounted_epsilon(config: Any, simulator: Simulator, rounds: int) -> tuple[float, float]:
    """Returns the accountant's epsilon for one example, infinite if there is none, and delta."""
    ledger = make_ledger(experiment.resolve(config), simulator.spec)
    if ledger is None:
        return float("inf"), DELTA
    is_comparable = isinstance(ledger, ExampleLedger) or not (
        ledger.is_scaled or ledger.release.relation not in COMPARABLE or ledger.release.noise == "laplace"
    )
    return ledger.epsilon(rounds) if is_comparable else float("inf"), ledger.delta or DELTA


def _prepare_inversion(
    config: Any, simulator: Simulator, state: Any, name: str, client: int, examples: int, iterations: int
) -> Callable[[Path], dict[str, Any]]:
    """Returns the inversion of one client's uplink, which writes its figure into a folder.

    Raises:
      ValueError: the attack does not simulate what the client does.
    """
    resolved = experiment.resolve(config)
    _check_simulated(resolved.fields, SIMULATED, "")
    if resolved.clients.specs:
        raise ValueError("audit --invert needs no config.clients: the attack simulates the method's own steps")
    require_classes("audit --invert", simulator.spec.data.train.y, "leave --invert out")
    epochs, batch = (int(resolved.method.option(name, 1)) for name in ("epochs", "batch"))
    steps = epochs * -(-examples // batch)
    if steps > 1:
        _check_simulated(resolved.fields, CHANGE_LATER_STEPS, f" with {steps} local steps")
    elif name != "cosine":
        _check_simulated(resolved.fields, CHANGE_LENGTH, f" with {name!r}, which compares lengths")
    lr = resolved.fields["optimizer.lr"] * (resolved.fields.get("optimizer.decay") or 1) ** int(state.round)
    observed = audit.observe_uplink(simulator, state, client, examples, steps=steps, lr=lr)
    model, attack = simulator.spec.bound_groups[0].task.model, audit.UplinkAttack(name, iterations)
    if jax.tree.structure(observed.before.stats) != jax.tree.structure(jax.eval_shape(model.init, jax.random.key(0)).stats):
        raise ValueError(
            f"statistics={resolved.statistics!r}: audit --invert needs the statistics of batch normalisation, which clients keep"
        )
    if "bias" not in observed.before.params.get("head", {}):
        raise ValueError(f"audit: the inversion reads classes off the bias of the network's head, and {model.name} has none")
    _check_simulation(config, model, client, min(examples, batch), epochs)
    return lambda folder: _invert(model, observed, attack, client, simulator.spec.data.classes, folder)


def _check_simulation(config: Any, model: Model, client: int, examples: int, steps: int) -> None:
    """Raises ValueError if the attack does not simulate the client's training, on examples of one minibatch.

    Its uplink is compared without what changes it later. Of several minibatches a step on all examples is no more than near.
    """
    plain = copy.deepcopy(config)
    with plain.unlocked():
        plain.update({group: dict.fromkeys(plain[group]) for group in AFTER_TRAINING} | {"schedule": None})
    simulator = experiment.build(plain)
    observed = audit.observe_uplink(
        simulator, simulator.init(int(plain.seed)), client, examples, steps=steps, lr=plain.optimizer.lr
    )
    if (difference := inversion.measure_difference(model, observed)) > SAME:
        raise ValueError(
            f"method.name={plain.method.name!r} with model {model.name!r}: audit --invert simulates plain SGD on cross-entropy by "
            f"running statistics, whose update is at an angle of sine {difference:.2g} to the client's; methods with another loss, "
            "batch normalisation and dropout are not simulated"
        )


def _check_simulated(fields: Mapping[str, Any], allowed: Mapping[str, Any], where: str) -> None:
    """Raises ValueError for a field that is set to something else than the inversion simulates."""
    for field, only in allowed.items():
        if (value := fields.get(field) or only) != only:
            what = f"audit --invert simulates SGD on cross-entropy, for which it must be {only!r}{where}"
            raise ValueError(f"{field}={value!r}: {what}")


def _invert(
    model: Model, observed: inversion.Observation, attack: audit.UplinkAttack, client: int, classes: int, folder: Path
) -> dict[str, Any]:
    from fedjax_core.reporting.plots import plot_contact_sheet  # matplotlib

    result, name = audit.invert_uplink(model, observed, attack), attack.name
    originals, labels = np.asarray(observed.examples.x), np.asarray(observed.examples.y)
    found, true = (np.bincount(y, minlength=classes) for y in (result.labels, labels))
    if originals.ndim == 4:
        rows = {"original": list(originals), name: list(result.images)}
        plot_contact_sheet(rows, folder / FIGURE)
    return {
        "attack": name,
        "client": client,
        "examples": len(labels),
        "local_steps": observed.steps,
        "distance": result.distance,
        "psnr": [float(value) for value in result.psnr],
        "ssim": [None if np.isnan(value) else float(value) for value in result.ssim],
        "labels_found": float(np.minimum(found, true).sum() / len(labels)),
    }


def report_lines(results: dict[str, Any]) -> list[str]:
    """Returns the results in words, for the screen."""
    lines = []
    for name, what in (("loss", "membership by loss"), ("likelihood_ratio", "membership by likelihood ratio")):
        if name in results:
            scores = results[name]
            rates = ", ".join(
                f"{100 * values[0]:.2f} % [{100 * values[1]:.2f}, {100 * values[2]:.2f}] at {100 * rate:g} % false ones"
                for rate in membership.RATES
                for values in [scores[f"true_positives_at_{rate:g}"]]
            )
            lines.append(f"{what}: area {scores['area']:.3f}; true positives {rates}")
    if "canaries" in results:
        found = results["canaries"]
        upper = "none" if found["upper"] is None else f"{found['upper']:.3g}"
        verdict = "; the accountant is disproved" if found["is_violated"] else ""
        lines.append(
            f"epsilon of an example at delta {found['delta']:g}: at least {found['lower']:.3g} (Gaussian: "
            f"{found['lower_gaussian']:.3g}) by {found['canaries']} canaries, the accountant's {upper}{verdict}"
        )
    if "inversion" in results:
        found = results["inversion"]
        psnr = ", ".join(f"{value:.1f}" for value in found["psnr"])
        lines.append(f"inversion ({found['attack']}) of {found['examples']} examples: PSNR {psnr} dB")
    return lines


def _parser() -> console.Parser:
    parser = console.Parser("audit", __doc__)
    parser.add_argument("run", help="directory of a run")
    parser.add_argument("--out", help="where the files go; by default audit/ of the run's directory")
    parser.add_argument("--shadows", type=int, default=0, help="trained models of the likelihood ratio, an even number")
    parser.add_argument("--canaries", type=int, default=0, help="mislabelled examples of a second training, for a bound of epsilon")
    parser.add_argument("--invert", choices=inversion.ATTACKS, help="attack on one client's uplink")
    parser.add_argument("--client", type=int, help="of the inversion; by default 0")
    parser.add_argument("--examples", type=int, help="of the inversion: the client's first examples; by default 1")
    parser.add_argument("--iterations", type=int, help="of the inversion's optimizer; by default 1000")
    parser.add_argument("--round", type=int, dest="done", help="by default the selected one, else the last with a checkpoint")
    parser.add_argument("--trust", action="store_true", help=TRUST)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns 0, or 1 (error), 2 (wrong command line), 130 (interrupted)."""
    console.send_warnings_to_stderr()
    try:
        given = {name: value for name, value in vars(_parser().parse_args(arguments)).items() if value is not None}
        for name in ("shadows", "canaries"):
            if given[name] < 0:
                raise ValueError(f"--{name}={given[name]} must be at least 0")
        if given["shadows"] % 2 or given["shadows"] == 2:
            raise ValueError(f"--shadows={given['shadows']} must be 0, or an even number of at least 4: pairs of halves")
        for name in ("client", "examples", "iterations"):
            if name in given and "invert" not in given:
                raise ValueError(f"--{name}={given[name]} needs --invert")
        for name in ("examples", "iterations"):
            if given.get(name, 1) < 1:
                raise ValueError(f"--{name}={given[name]} must be at least 1")
    except ValueError as error:
        return console.fail(error, 2)

    def write_audit() -> None:
        experiment.cache_compiled_programs(experiment.COMPILATION_CACHE)
        write_text("\n".join(report_lines(audit_run(given.pop("run"), **given))))

    return console.run_command(write_audit)


if __name__ == "__main__":
    run_and_exit("fedjax_core.commands.audit", sys.argv[1:])
