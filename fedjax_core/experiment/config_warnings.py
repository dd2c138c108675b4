"""Warns about valid settings that have little or no effect, in a line each before a run."""

import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core import option_types, registry
from fedjax_core.algorithm import Cohort, PyTree, is_reduce, targets_of
from fedjax_core.data import sources
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.data.ragged_index import RaggedIndex
from fedjax_core.data.sources import Dataset
from fedjax_core.engine import asynchronous, client_sampling, evaluation
from fedjax_core.engine.simulation_spec import SimulationSpec
from fedjax_core.experiment import lookup
from fedjax_core.experiment.resolve_config import ResolvedConfig
from fedjax_core.language import instruction_task as language
from fedjax_core.task import Model
from fedjax_core.training import metrics, param_partition
from fedjax_core.training.mixing_matrices import DIRECTED, OWN_GRAPHS
from fedjax_core.uplink import attacks, robust_aggregation

SCALED = ("diabetes",)  # data sets, and those derived from them, that scale targets by statistics of all training examples
SMALLEST_DECAY = 1e-6  # of the learning rate over all rounds, that may be meant
STEP_IS_RATE = ("adam", "adamw", "amsgrad", "lion", "nadam", "nadamw", "radam")  # optimizers that divide by the gradient's size
LARGEST_STEP = 0.03  # of one weight in one local step, that may be meant
log = logging.getLogger("fedjax_core")


def warn(
    resolved: ResolvedConfig, data: FederatedData, attackers: int, fresh: Mapping[str, Model], collect: Callable[[], PyTree]
) -> None:
    """Logs the warnings of the functions below.

    Args:
      attackers: number of clients that attack.
      fresh: networks that begin from no file, by spec.
      collect: () -> the method's; called only where a warning depends on it.
    """
    size = client_sampling.resolve_cohort_size(resolved.cohort, data.clients)
    size = size if resolved.schedule is None else asynchronous.buffer_size(resolved.schedule, size)
    returning = max(1, round(size * (1 - resolved.dropout)))
    lines = [
        *check_attack(resolved, returning, data.clients, attackers),
        *check_rule(resolved.rule, returning),
        *check_statistics(resolved.statistics, fresh, any(network.file for network in resolved.networks)),
        *check_personal_layers(resolved, fresh),
        *check_precision(resolved),
        *check_source(resolved, data.name),
        *check_batch(resolved, data),
        *check_decay(resolved),
        *check_step(resolved),
        *check_delta(resolved, data),
        *check_sampling(resolved, collect),
        *check_offset(resolved, data.x_offset is not None or data.y_offset is not None),
        *check_feddyn(resolved, data, returning / data.clients),
        *check_directed_graph(resolved, returning, data.clients),
        *check_link_seconds(resolved, returning, data.clients),
        *check_targets(data),
        *check_classes(resolved, data),
        *check_validation(resolved, data),
        *check_public(resolved),
        *check_kept_states(resolved),
    ]
    log_lines(lines)


def log_lines(lines: Sequence[str]) -> None:
    """Logs warnings."""
    for line in lines:
        log.warning("%s", line)


def check_batch(resolved: ResolvedConfig, data: FederatedData) -> list[str]:
    """Returns a warning where a minibatch is larger than all clients' data together."""
    batch, rows = resolved.method.options.get("batch"), RaggedIndex.from_lists(data.train_index)
    if not isinstance(batch, int) or batch <= rows.total:
        return []
    largest = int(rows.size.max())
    what = f"method.batch={batch} is more than the {rows.total} training examples of all clients, of whom one has at most {largest}"
    return [f"{what}: each takes one step an epoch, on all that it has"]


def check_decay(resolved: ResolvedConfig) -> list[str]:
    """Returns a warning of a learning rate that grows, or that is next to nothing in the last round."""
    decay, name = resolved.fields.get("optimizer.decay"), resolved.fields["optimizer.name"].partition("(")[0]
    if decay is None or name not in lookup.OPTIMIZERS or (decay <= 1 and decay ** (resolved.run.rounds - 1) >= SMALLEST_DECAY):
        return []
    return [f"optimizer.decay={decay:g} multiplies the rate each round; weight decay is optimizer.weight_decay"]


def check_step(resolved: ResolvedConfig) -> list[str]:
    """Returns a warning of a learning rate for SGD that was left in place for Adam and the like."""
    rate, name = resolved.fields.get("optimizer.lr"), resolved.fields["optimizer.name"].partition("(")[0].rpartition(":")[2]
    if not isinstance(rate, int | float) or name not in STEP_IS_RATE or rate <= LARGEST_STEP:
        return []
    return [f"optimizer.lr={rate:g} with {name} moves each weight by about {rate:g} a step, whatever its gradient; 0.001 is usual"]


def check_delta(resolved: ResolvedConfig, data: FederatedData) -> list[str]:
    """Returns a warning of a delta that allows to publish a client, or an example, as it is."""
    privacy = resolved.privacy
    if privacy is None:
        return []
    if privacy.level == "example":
        number, what = RaggedIndex.from_lists(data.train_index).total, "training examples"
    else:
        number, what = privacy.population or data.clients, "clients"
    if privacy.delta * number <= 1:
        return []
    return [f"privacy.delta={privacy.delta:g} is more than one over the {number} {what}: one of them may be published as it is"]


def check_sampling(resolved: ResolvedConfig, collect: Callable[[], PyTree]) -> list[str]:
    """Returns a warning of clients that are drawn by their examples and weighted by them again."""
    sampler, method = client_sampling.find_sampler(resolved.sampling), resolved.method
    by_size = sampler.function in (client_sampling.SizeSampler, client_sampling.PowerOfChoiceSampler)
    by_size |= bool(sampler.options.get("by_size"))
    if not by_size:
        return []
    option, better = "method.weights='samples'", "set method.weights='uniform'"
    counts_twice = method.option("weights") == "samples"
    if method.origin != registry.BUILT_IN:  # it may have no such option, or not read it
        weights = [part.weight_fn for part in jax.tree.leaves(collect(), is_leaf=is_reduce) if part.weight_fn is not None]
        if weights:
            few, many = (Cohort(jnp.int32(0), jnp.int32(examples)) for examples in (1, 2))
            taken = "take aggregators.mean(aggregators.weight_uniformly) there"
            better = f"{better} if it reads this, or {taken}" if counts_twice else taken
            option, counts_twice = "the method's collect", any(weight(few) != weight(many) for weight in weights)
    if not counts_twice:
        return []
    what = f"draws clients by their examples, and {option} weights them by these again"
    return [f"cohort.sampling={resolved.sampling!r} {what}; {better}"]


def _has_feddyn_server(method: registry.ResolvedSpec) -> bool:
    sums = method.name in ("feddc", "feddyn") or (method.name == "fedspeed" and method.option("dual_mean") == "all")
    return method.origin == registry.BUILT_IN and sums


def check_feddyn(resolved: ResolvedConfig, data: FederatedData, participation: float) -> list[str]:
    """Returns a warning of FedDyn's server with SGD whose alpha is outside of 1 / (rate * local steps) to 1 / rate in some round.

    `methods/feddyn.py` says what then happens. The mean of its states remembers 1 / (P (1 - (1 - rate * alpha)^steps)) rounds.
    """
    method, fields = resolved.method, resolved.fields
    if not _has_feddyn_server(method) or fields["optimizer.name"] != "sgd":
        return []
    alpha, epochs, batch = (method.option(name) for name in ("alpha", "epochs", "batch"))
    rate = fields["optimizer.lr"] / (1 - (fields.get("optimizer.momentum") or 0))
    last = rate * (fields.get("optimizer.decay") or 1) ** (resolved.run.rounds - 1)
    least, most = min(rate, last), max(rate, last)
    sizes = RaggedIndex.from_lists(data.train_index).size
    steps = epochs * sum(math.ceil(size / batch) for size in sizes) / len(sizes)
    if not steps or (least * alpha * steps >= 1 and most * alpha <= 1):
        return []
    range_ = f"alpha from {1 / (rate * steps):.2g} to {1 / rate:.2g} suits a rate of {rate:.2g} and {steps:.0f} local steps"
    if most * alpha > 1:
        return [f"method.alpha={alpha:g}: local steps overshoot and may diverge; {range_}"]
    forgotten = -math.expm1(steps * math.log1p(-least * alpha)) if least * alpha < 1 else 1.0
    rounds = resolved.run.rounds
    memory = min(rounds, 1 / (participation * forgotten)) if forgotten > 0 else rounds
    remembered = f"about {memory:.0f} rounds" if memory < rounds else "all rounds"
    at_the_end = "" if least == rate else f" once the rate is {least:.2g}"
    what = f"the clients' states remember {remembered}{at_the_end} and the server steps by 1 / alpha; it may stall or diverge"
    better = "; method.score='active_mean' scores the mean of a round's models" if method.name != "fedspeed" else ""
    return [f"method.alpha={alpha:g}: {what}; {range_}{better}"]


def check_directed_graph(resolved: ResolvedConfig, returning: int, population: int) -> list[str]:
    """Returns a warning of averaging along a directed graph in which clients are absent: the mean of all models then drifts."""
    method = resolved.method
    if method.origin != registry.BUILT_IN or method.name != "dfedavg" or returning >= population:
        return []
    if method.option("topology") not in DIRECTED:
        return []
    what = f"{returning} of {population} clients take part in a round, and links go one way, so that the mean of all models drifts"
    return [f"method.topology={method.option('topology')!r}: {what}; take 'ring', 'torus' or 'random', or all clients"]


def check_link_seconds(resolved: ResolvedConfig, returning: int, population: int) -> list[str]:
    """Returns a warning of transfers over a graph of clients, timed by the mean number of neighbours, that are fewer or more."""
    method, devices = resolved.method, resolved.client_devices
    if method.origin != registry.BUILT_IN or method.name != "dfedavg" or devices is None or devices.profile is None:
        return []
    if devices.profile.option("down", 1.0) is None and devices.profile.option("up", 1.0) is None:  # transfers take no time
        return []
    can_miss = (devices.availability, devices.deadline, devices.wait_for) != (None, None, None)
    can_miss |= returning < population or bool(np.any(devices.profile.option("failure", 0.0)))
    if not can_miss and method.option("topology") not in OWN_GRAPHS:
        return []
    why = "links of absent clients are left out" if can_miss else "numbers of neighbours may differ"
    what = "simulated_seconds have each client receive and send the mean number of neighbours' models, in every round"
    return [f"devices.profile: {what}, but {why}; server/link_bytes has the bytes of the links"]


def check_targets(data: FederatedData) -> list[str]:
    """Returns a warning of clients whose targets vary too little beside their distance from the mean for an R2 of their own."""
    if targets_of(data.train.y) != "numbers":
        return []
    y, lists = np.asarray(data.test.y, np.float64), RaggedIndex.from_lists(data.test_index)
    y = (y - np.asarray(data.train.y).mean(0, dtype=np.float64)).reshape(len(y), -1)

    def is_too_alike(start: int, size: int) -> bool:
        own = y[lists.rows[start : start + size]]
        varies, small = own.max(0) > own.min(0), size * own.var(0) <= metrics.MIN_RELATIVE_VARIANCE * np.sum(own**2, 0)
        return bool(np.any(varies & small))

    places = zip(lists.start.tolist(), lists.size.tolist(), strict=True)
    cached = functools.cache(is_too_alike)  # clients may share all test examples
    number = sum(cached(start, size) for start, size in places if size)
    if not number:
        return []
    what = f"test targets of {number} of {len(lists.size)} clients vary by less than 0.3 % of their distance from the mean of all"
    return [f"{what} training targets: their own r2 is undefined and left out of means; scale targets by client"]


def check_classes(resolved: ResolvedConfig, data: FederatedData) -> list[str]:
    """Returns a warning of classes that are tested and that no client trains on."""
    if targets_of(data.train.y) != "classes" or resolved.episodes is not None or resolved.is_for_texts:
        return []  # the y of texts are their data sets, and nobody trains on the one left out
    trained, tested = np.sum(data.label_table, 0), np.bincount(data.test.y, minlength=data.classes)
    missing = np.flatnonzero((trained == 0) & (tested > 0))
    if not len(missing):
        return []
    names = option_types.shorten(", ".join(data.class_names[k] for k in missing))
    what = f"{tested[missing].sum()} of {tested.sum()} test examples are of classes that no client trains on"
    return [f"{data.name}: {what}: {names}"]


def check_validation(resolved: ResolvedConfig, data: FederatedData) -> list[str]:
    """Returns a warning where most clients hold no validation example, since their part of one is rounded down."""
    held, trained = (RaggedIndex.from_lists(index).size for index in (data.validation_index, data.train_index))
    without = int(np.count_nonzero((held == 0) & (trained > 0))) if len(held) == len(trained) else 0
    if not np.any(held) or 2 * without <= np.count_nonzero(trained):
        return []
    what = f"{without} of {np.count_nonzero(trained)} clients hold none of the {int(held.sum())} validation examples"
    return [f"data.validation={resolved.data.validation}: {what}, since a client's part is rounded down; scores rest on the others"]


def check_public(resolved: ResolvedConfig) -> list[str]:
    """Returns a warning of public examples that a built-in method does not read."""
    method = resolved.method
    reads = method.name in ("fedmd", "feddf") or (method.name == "perada" and (method.option("distil") or {}).get("on"))
    if resolved.public is None or method.origin != registry.BUILT_IN or reads:
        return []
    what = f"method {method.name!r} does not read them{', with distil.on=False' if method.name == 'perada' else ''}"
    return [f"public={resolved.fields['public']!r}: {what}, and heads have outputs for their classes too; set public=None"]


def check_kept_states(resolved: ResolvedConfig) -> list[str]:
    """Returns a warning of a server that sums changes of what clients keep, and receives them weighted, clipped or by a rule."""
    method, schedule, fields = resolved.method, resolved.schedule, resolved.fields
    is_scaffold = method.name == "scaffold" and method.origin == registry.BUILT_IN
    if not is_scaffold and not _has_feddyn_server(method):
        return []
    changed = {
        "schedule": schedule is not None and schedule.has_weights,
        "privacy.mechanism": resolved.mechanism is not None and fields["privacy.level"] != "example",
        "aggregation.rule": any(rule.name != "mean" for rule in resolved.rule),
    }
    why = f"the server of {method.name} sums what clients keep; here the two drift apart, and training converges elsewhere"
    return [f"{name}={fields[name]!r}: {why}; take fedavg, fedprox or fedopt" for name, is_set in changed.items() if is_set]


def check_evaluation(resolved: ResolvedConfig, spec: SimulationSpec) -> list[str]:
    """Returns a warning where nothing is scored, or the last round only."""
    every, rounds, scopes = resolved.run.eval_every, resolved.run.rounds, resolved.evaluation.scopes
    if "post_local" not in scopes and not evaluation.list_test_scores(spec):
        models = list(spec.abstract_algorithm(0).predict)
        other = "('global',) scores the server's on the test set" if "global" in models else "('own',) scores each client's"
        return [f"evaluation.scopes={scopes!r} scores no model in any round: method {resolved.method.name!r} has {models}; {other}"]
    if every <= rounds:
        return []
    return [f"evaluation.every={every} is more than rounds={rounds}: only the last round is scored"]


def check_attack(resolved: ResolvedConfig, returning: int, population: int, attackers: int) -> list[str]:
    """Returns a warning of an attack that reads others' uplinks where a step has one; or of ALIE whose own choice of z is
    at most 0: it then sends the mean of the honest clients, or better."""
    m = round(returning * attackers / population)
    specs = [] if resolved.adversary is None else resolved.adversary.attacks
    if returning == 1 and (readers := [attack.spec for attack in specs if attack.function in attacks.CRAFTED.values()]):
        what = f"the server steps by one update, so {readers[0]} reads no other, and attackers send zeros"
        larger = "cohort" if resolved.schedule is None else "buffer (fedbuff)"
        return [f"adversary.attack: {what}; take sign_flip, or a larger {larger}"]
    chooses_z = any(attack.function is attacks.alie and attack.options.get("z") is None for attack in specs)
    if not chooses_z or (z := float(attacks.largest_z(returning, m))) > 1e-6:
        return []
    what = f"of {returning} clients a round {m} attack, for which alie takes z = {round(z, 2) + 0.0:g}, which is no attack"
    return [f"adversary.attack: {what}; give it one, such as alie(z=1.0)"]


def check_source(resolved: ResolvedConfig, name: str) -> list[str]:
    """Returns a warning of privacy for each thing that data, called `name`, read from all clients' examples: a vocabulary, the
    values of categories, means in place of missing cells, a scale."""
    if resolved.mechanism is None:
        return []
    found = [resolved.data.source]
    while found[-1].origin == registry.BUILT_IN and isinstance(inner := found[-1].option("of"), str):
        found.append(sources.find_reader(inner, field="data.source"))
    is_read = {
        "its vocabulary": any(source.option("words") is not None for source in found),
        "the list of a categorical column's values": any(source.option("categorical") for source in found),
        "the mean in place of a missing cell": any(source.option("missing") == "mean" for source in found),
        "the mean and deviation of its targets": name.startswith(SCALED),
    }
    what = "is read from all clients' training examples, which epsilon does not cover"
    return [f"{name}: {text} {what}" for text, is_so in is_read.items() if is_so]


def check_personal_layers(resolved: ResolvedConfig, fresh: Mapping[str, Model]) -> list[str]:
    """Returns a warning of each network of which FedBN keeps no layer at the clients."""
    method = resolved.method
    if method.origin != registry.BUILT_IN or method.name != "fedbn":
        return []
    others = bool(method.option("others"))
    select = param_partition.personal_normalization(others)
    nets = {spec: jax.eval_shape(model.init, jax.random.key(0)) for spec, model in fresh.items()}
    better = "take a network with normalization" if others else "others=True keeps group and layer normalization"
    return [
        f"method 'fedbn' keeps no layer of {spec} at a client, so it is fedavg; {better}"
        for spec, net in nets.items()
        if not any(jax.tree.leaves(select(net)))
    ]


def check_precision(resolved: ResolvedConfig) -> list[str]:
    """Returns a warning of each language model that is trained whole in bfloat16."""
    if resolved.adapter is not None:
        return []
    specs = [network.resolved for network in resolved.networks if network.resolved.function is language.Spec]
    what = "with adapter=None the parameters that are trained are bfloat16, whose 8 significant bits round most updates away"
    better = "set adapter, such as 'lora(rank=8)', or dtype='float32'"
    return [f"models={spec.spec!r}: {what}; {better}" for spec in specs if spec.option("dtype") == "bfloat16"]


def check_partition(scheme: registry.ResolvedSpec, dataset: Dataset) -> list[str]:
    """Returns a warning of clients or domains that the data have and the partition does not use."""
    takes, _ = registry.read_parameters(scheme.function)
    columns = {"clients": (dataset.train_clients, "natural"), "domains": (dataset.train_domains, "by_domain")}
    named = {name: partition for name, (column, partition) in columns.items() if column is not None}
    if not named or not {"ids", "domains"}.isdisjoint(takes):
        return []
    what = f"does not use the own {' and '.join(named)} of {dataset.name}, and makes other clients"
    return [f"data.partition={scheme.spec!r} {what}; {' or '.join(map(repr, named.values()))} takes them"]


def check_offset(resolved: ResolvedConfig, has_offset: bool) -> list[str]:
    """Returns a warning of privacy with data from which a median over all clients' examples was
    subtracted."""
    if resolved.mechanism is None or not has_offset:
        return []
    what = "the offset of columns far from 0 is read from all clients' training examples"
    return [f"{what}, which epsilon does not cover"]


def check_rule(rule: Sequence[registry.ResolvedSpec], returning: int) -> list[str]:
    """Returns a warning of each rule whose `attackers` are less than one returning client, or more than it withstands."""
    lines, whole = [], option_types.shorten(" | ".join(spec.spec for spec in rule))
    for spec in rule:
        share = spec.option("attackers", 0) if spec.origin == registry.BUILT_IN else 0
        asked = int(robust_aggregation.count_attackers(jnp.ones(returning, bool), share)[1])
        needed = robust_aggregation.PER_ATTACKER.get(spec.function, 0)
        what = f"aggregation.rule={whole}: attackers={share:g} of the {returning} clients of a round"
        if share > 0 and asked == 0:
            lines.append(f"{what} is less than one, so {spec.name} withstands none")
        elif needed and (most := int(robust_aggregation.count_withstood(returning, needed))) < asked:
            lines.append(f"{what} are {asked}, of which {spec.name} withstands {most}: f attackers need {needed} f + 3 clients")
    return lines


def check_statistics(mode: str, fresh: Mapping[str, Model], has_files: bool) -> list[str]:
    """Returns a warning of frozen batch normalisation in networks that begin from no file, which never
    normalises; and of frozen or local statistics where no network has any."""
    if mode == "average":
        return []
    stats = {spec: jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)).stats) for spec, model in fresh.items()}
    if not has_files and not any(stats.values()):
        effects = {"local": "nothing stays with a client; scores are those of 'personal' models", "freeze": "nothing is frozen"}
        return [f"statistics={mode!r}: no network trains batch normalisation, so that {effects[mode]}"]
    if mode == "local":
        return []
    why = "keeps mean 0 and variance 1, as it began; give weights, or statistics='average'"
    return [f"statistics='freeze': batch normalisation of {spec}, which has no weights, {why}" for spec in fresh if stats[spec]]
