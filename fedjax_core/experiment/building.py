"""From what a config asks for to a simulation: data are read and divided, networks built, tasks made of both."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_core import by_name, nn, values
from fedjax_core.algorithm import TARGETS, Examples, Net, targets_of
from fedjax_core.by_name import BUILT_IN, Found
from fedjax_core.data import federated, poison, sources
from fedjax_core.data.readers import in_file
from fedjax_core.data.row_lists import RowLists
from fedjax_core.data.smaller import adapted, smaller
from fedjax_core.data.unseen import seen_rows, set_apart
from fedjax_core.data.validation import hold_out
from fedjax_core.engine import cohort as cohorts
from fedjax_core.engine import parallel
from fedjax_core.engine.simulation import Build, Group, Simulation
from fedjax_core.experiment import cautions, given
from fedjax_core.experiment.asked import NORMALISATIONS, OF_TARGETS, Asked, Config, Network, algorithm, files, network, resolve
from fedjax_core.language import prepare as language
from fedjax_core.learning import augment, backdoor, episodes, lora, scored
from fedjax_core.learning.normalisation import local_statistics
from fedjax_core.privacy import Spent
from fedjax_core.storage import weights
from fedjax_core.task import PARTS, Model, Task, of_model, part_of
from fedjax_core.uplink import Link, attacks, correlated, order

Scaling = tuple[Sequence[float], Sequence[float]]  # mean and deviation of each channel


class Kind(NamedTuple):
    """A kind of data: the way from its source to a network's task.

    Attributes:
      federated: (asked) -> the data, divided over the clients.
      task: (asked, network, data, public examples, shapes_only) -> the task of the clients that have the network.
      public: (asked, examples) -> the set that everybody holds, with rows like these; `()` without one.
    """

    federated: Callable[[Asked], federated.FederatedData]
    task: Callable[..., Task]
    public: Callable[[Asked, Examples], Examples | tuple[()]]


def build(
    config: Config,
    data: federated.FederatedData | None = None,
    *,
    method: Callable | None = None,
    model: Any = None,
    loss: Callable | None = None,
    scores: given.Scores | None = None,
    shapes_only: bool = False,
    devices: Sequence[Any] | None = None,
    kind: Kind | None = None,
    noise: float | None = None,
    by_lane: Callable[[Asked], Build] | None = None,
) -> Simulation:
    """The simulation that a config describes.

    Args:
      config: see `configs/base.py`.
      data: in place of the config's, such as mock data of the same shape.
      method, model, loss, scores: in place of the config's, see `given.into`.
      shapes_only: nothing will run: what is frozen is zeros that take no memory, and files of weights are not looked for.
      devices: in place of those that jax sees, such as a topology's to compile for.
      kind: in place of the way that the config's data are read (`stand_in.py`).
      noise: multiplier of a run whose noise is known, so that it is not calibrated, and nothing is accounted for.
      by_lane: makes the method, in place of its options in the config alone (`numbers.py`).

    Returns:
      The simulation, checked but not compiled; nothing is on a device yet.

    Raises:
      ValueError, TypeError: the config asks for something that is not there or not possible; the message names it.
      FileNotFoundError: the data are not there; the message says where to get and put them.
    """
    asked = resolve(given.into(config, method, model, loss, scores))
    kind = _kind(asked) if kind is None else kind
    data = _set_apart(asked, kind.federated(asked) if data is None else data)
    _fits(asked, config, targets_of(data.train.y))
    clients, networks = np.arange(data.clients), asked.networks
    if not 1 <= len(networks) <= len(clients):
        models = tuple(one.found.spec for one in networks)
        raise ValueError(f"models={models} must be at least one, and no more than the {len(clients)} clients")
    places: dict[tuple[str, str | None], list[int]] = {}
    for i, one in enumerate(networks):
        places.setdefault((one.found.spec, one.file), []).append(i)
    make = algorithm(asked) if by_lane is None else by_lane(asked)
    make = local_statistics(make) if asked.statistics == "local" else make
    poisons, links = _attacked(asked, data.clients)
    trigger = next((one.trigger for one in poisons if one.trigger is not None), None)
    make = make if trigger is None else backdoor.watched(make, trigger)
    scores_of_all = asked.scores | ({} if trigger is None else {"backdoor": backdoor.score(trigger)})
    groups, fresh, everybodys = [], {}, kind.public(asked, data.train)
    for (spec, _), mine in places.items():
        one = networks[mine[0]]
        task = kind.task(asked, one._replace(file=None) if shapes_only else one, data, everybodys, shapes_only)
        if scores_of_all or asked.loss is not None:
            task = dataclasses.replace(task, scores={**task.scores, **scores_of_all}, loss=asked.loss)
        fresh |= {} if one.file else {spec: task.model}
        groups.append(Group(f"{mine[0]}: {spec}", make, task, clients[np.isin(clients % len(networks), mine)]))
    if asked.adversary is not None and any(group.build(group.task).pooled for group in groups):
        raise ValueError(
            f"adversary.attack={values.short(config.adversary.attack)}: a pooled method has no clients that could attack"
        )
    seed, evil = asked.data.seed, attackers(asked, data.clients)
    spent = _spent(asked, data.clients, not shapes_only, noise)
    if not shapes_only:
        cautions.say(asked, config.get("aggregation", {}).get("rule"), data.clients, len(evil), fresh)
    return Simulation(
        groups,
        poison.counted(data, poisons, evil) if shapes_only else poison.poisoned(data, poisons, evil, seed),
        cohort=asked.cohort,
        dropout=asked.dropout,
        plan=_plan(asked, data.clients, devices),
        evaluation=asked.evaluation,
        hold=asked.hold,
        data_on=asked.data_on,
        episodes=asked.episodes,
        devices=devices,
        links=order([*asked.links, *links, *_private(asked, spent, data.clients)]),
        leave_out=asked.leave_out,
        sampling=asked.sampling,
    )


def attackers(asked: Asked, population: int) -> list[int]:
    """Ids of the clients that attack."""
    return [] if asked.adversary is None else attacks.attackers(population, asked.adversary.fraction, asked.data.seed).tolist()


def _attacked(asked: Asked, population: int) -> tuple[list[poison.Poison], list[Link]]:
    """What attackers do to their rows, and to what they send."""
    found = [] if asked.adversary is None else asked.adversary.attacks
    ids = attackers(asked, population)
    made = [(one, one()) for one in found]
    patterns = [one.spec for one, attack in made if isinstance(attack, poison.Poison) and attack.trigger is not None]
    if len(patterns) > 1:
        raise ValueError(f"adversary.attack has two backdoors, {' and '.join(patterns[:2])}; one can be scored, so give one")
    links = [attacks.link(one.name, attack, ids) for one, attack in made if not isinstance(attack, poison.Poison)]
    return [attack for _, attack in made if isinstance(attack, poison.Poison)], links


def spent(config: Config, simulation: Simulation) -> Spent | None:
    """What rounds of a config's simulation cost in privacy; None where there is none."""
    return _spent(resolve(config), simulation.population)


def _spent(asked: Asked, population: int, calibrate: bool = True, known: float | None = None) -> Spent | None:
    if asked.privacy is None:
        return None
    return asked.privacy.spent(cohorts.number(asked.cohort, population), population, asked.sampling, calibrate, known)


def _private(asked: Asked, spent: Spent | None, population: int) -> list[Link]:
    """The link that makes the noise."""
    if asked.mechanism is None or spent is None:
        return []
    size, found = cohorts.number(asked.cohort, population), asked.mechanism
    real = spent.release.cohort if spent.release.sampling != "local" else size
    if spent.strategy is not None:
        return [correlated.link(spent.clip, spent.noise, size, real, spent.strategy)]
    return [found.function(spent.clip, spent.noise, size, real, **found.options)]


def _fits(asked: Asked, config: Config, kind: str) -> None:
    """Raises ValueError for what is for other targets than the data have."""
    loss = None if config.get("loss") is None else by_name.parse(config.loss, "loss")[0]
    if loss in OF_TARGETS and kind not in OF_TARGETS[loss]:
        raise ValueError(f"loss={config.loss!r} is for {' or '.join(OF_TARGETS[loss])}, the data have {kind}: {TARGETS[kind]}")
    if taken := [name for name in asked.scores if name in scored.NAMES[kind]]:
        raise ValueError(f"evaluation.scores has {taken[0]!r}, which is scored of {kind} already; give yours another name")
    if kind == "classes":
        return
    for field, is_set in (("task", asked.episodes is not None), ("public", asked.public is not None)):
        if is_set:
            raise ValueError(f"{field}={config[field]!r} needs classes, the data have {kind}: {TARGETS[kind]}")


def dataset(config: Config) -> federated.FederatedData:
    """The config's data, divided over its clients."""
    asked = resolve(config)
    return _set_apart(asked, _kind(asked).federated(asked))


def _set_apart(asked: Asked, data: federated.FederatedData) -> federated.FederatedData:
    """With unseen clients and validation rows, if the config wants some and the data have none."""
    if asked.data.unseen is not None and data.unseen is None:
        data = set_apart(data, asked.data.unseen, asked.data.seed)
    part = asked.data.validation
    if part is None or RowLists.of(data.validation_index).total:
        return data
    return hold_out(data, part, asked.data.seed)


def prepared(config: Config) -> language.Prepared:
    """Instructions, read for the config's one model.

    Raises:
      ValueError: the config has none, or asks for what is for images alone.
    """
    asked = resolve(config)
    if _kind(asked) is not TEXTS:
        raise ValueError(f"data.source={asked.data.source.spec!r} has no texts; instructions(leave_out=...) has")
    return _read(asked)


def _kind(asked: Asked) -> Kind:
    return TEXTS if asked.data.source.function is language.Source else ROWS


def _plan(asked: Asked, population: int, devices: Sequence[Any] | None) -> parallel.Plan | None:
    if asked.chunk is None and asked.devices is None and asked.model == 1:
        return None
    cohort = population if asked.cohort is None else asked.cohort
    number = cohorts.number(cohort, population)
    number = cohorts.places(number, population) if asked.sampling == "poisson" else number
    return parallel.choose(number, chunk=asked.chunk, devices=asked.devices, model=asked.model, among=devices)


# ------------------------------------------------------------------------------------- rows of images, or of other arrays


def _loaded(source: Found, directory: str | None) -> sources.Dataset:
    return sources.load(source.name, directory, **source.options)


def _divided(asked: Asked) -> federated.FederatedData:
    data = asked.data
    scheme = {"name": data.partition.name, **data.partition.options}
    whole = smaller(_loaded(data.source, data.directory), data.size, data.examples)
    return federated.federate(whole, scheme, data.clients, data.seed, **data.tests)


def public(asked: Asked, like: Examples) -> Examples | tuple[()]:
    """The labelled set that everybody holds, as examples of the shape of `like`; empty if none is asked for."""
    if asked.public is None:
        return ()
    source, number = asked.public
    return adapted(smaller(_loaded(source, asked.data.directory), examples=number).train, like)


def _classified(
    asked: Asked, one: Network, data: federated.FederatedData, everybodys: Examples | tuple[()], shapes_only: bool
) -> Task:
    """The task to classify rows: a network for them, and what of it is trained."""

    def wrapped(model: Model) -> Model:
        model = model if asked.augment is None else augment.augmented(model, asked.augment)
        return model if asked.episodes is None else episodes.prototypical(model, data.classes)

    outputs = data.classes + (int(everybodys.y.max()) + 1 if isinstance(everybodys, Examples) else 0)
    outputs = 1 if asked.episodes is not None else outputs
    model = _model(one, data, asked.statistics, outputs, _scaling(asked.normalise, data.train, one.file, seen_rows(data)))
    shape = tuple(data.train.x.shape[1:])
    settings: dict[str, Any] = {"classes": data.classes, "population": data.clients, "shape": shape, "public": everybodys}
    if one.file is None and asked.adapter is None and asked.train == "all":
        return of_model(wrapped(model), **settings)
    image = nn.image_size(shape, **(_of_file(one) | one.around))
    arrays = beginning(model, one.file, asked.train, asked.seed, image, shapes_only)
    if asked.adapter is not None:
        return lora.adapted(model, arrays, asked.adapter, PARTS[asked.train] or (), **settings).wrapped(wrapped)
    return part_of(model, arrays, asked.train, **settings).wrapped(wrapped)


def _of_file(one: Network) -> dict[str, Any]:
    """Options that go with a network's file of weights."""
    return dict(weights.options(one.file) if one.file else {})


def _model(one: Network, data: federated.FederatedData, statistics: str, classes: int, scaling: Scaling | None) -> Model:
    mean, std = scaling or (None, None)
    options = _of_file(one) | one.found.options | one.around
    shape = data.train.x.shape[1:]
    if one.found.origin != BUILT_IN:
        scaled = functools.partial(nn.normalise, mean=mean, std=std, dtype=None)
        return nn.outside.build(one.found.function, one.found.name, classes, shape, options, scaled, statistics)
    return nn.build(one.found.name, classes, shape, mean, std, statistics, **options)


def network_of(
    spec: str,
    data: federated.FederatedData,
    statistics: str = "average",
    classes: int | None = None,
) -> Model:
    """A model for the data.

    Args:
      spec: name and options, as in `config.models`.
      data: to be classified; inputs are normalised by the training set's mean and deviation.
      statistics: as in configs.
      classes: outputs of the head; None: as many as the data have.
    """
    return _model(network(spec), data, statistics, classes or data.classes, _scaling("data", data.train, None, seen_rows(data)))


def weight_files(config: Config) -> tuple[str | None, ...]:
    """The file that each of `config.models` begins from, or None.

    Raises:
      ValueError: there are not as many as models.
    """
    return files(config.models, config.weights)


def spelled(spec: str, file: str | None) -> str:
    """The spec of a network that begins from a file: with the options that go with it, where the spec does not say them."""
    own = weights.options(file) if file else {}
    if not own:
        return spec
    one = network(spec)
    options = own | one.found.options | one.around
    return f"{one.found.name}({', '.join(f'{option}={value!r}' for option, value in options.items())})"


def scaling(config: Config, examples: Examples, file: str | None = None, rows: np.ndarray | None = None) -> Scaling | None:
    """Mean and deviation by which a network's inputs are normalised: its file's, if it says so; else as `config.normalise` asks;
    None for whole numbers that are no pixels, such as tokens.

    Raises:
      ValueError: an unknown normalisation, or one for other channels.
    """
    return _scaling(resolve(config).normalise, examples, file, rows)


def _scaling(normalise: str, examples: Examples, file: str | None, rows: np.ndarray | None = None) -> Scaling | None:
    own = None if file is None else weights.scaling(file)
    dtype = np.asarray(examples.x).dtype
    if own is None and np.issubdtype(dtype, np.integer) and dtype != np.uint8:
        return None
    found = own or NORMALISATIONS[normalise] or scale(examples, rows)
    channels = examples.x.shape[-1] if examples.x.ndim > 1 else 1
    if len(found[0]) not in (1, channels):
        origin = f"weights={file!r}" if own else f"normalise={normalise!r}"
        raise ValueError(f"{origin} is for images of {len(found[0])} channels, these have {channels}")
    return found


def drawn_by_seed(config: Config) -> bool:
    """Whether some of what is frozen is drawn by the seed, so that runs of other seeds have other arrays."""
    pairs = zip(config.models, weight_files(config), strict=True)
    begins_anew = any(file is None and not spec.startswith(language.MODEL) for spec, file in pairs)
    return begins_anew and (config.adapter is not None or config.train != "all")


def beginning(
    model: Model, file: str | None, train: str, seed: int, image: tuple[int, int] | None, shapes_only: bool = False
) -> Net:
    """The arrays that a network begins from: those of its file; or if but a part is trained, random ones for the rest.

    Args:
      model: the network.
      file: with its weights, or None.
      train: what is trained, one of `PARTS`.
      seed: of what is random.
      image: height and width of the images that it sees; None: they are no images.
      shapes_only: zeros in place of random ones.
    """
    if file is not None:
        return weights.backbone(file, model.name, jax.eval_shape(model.init, jax.random.key(0)), image=image)
    if shapes_only:
        zero = lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
        net = jax.tree.map(zero, jax.eval_shape(model.init, jax.random.key(0)))
    else:
        net = jax.device_get(jax.jit(model.init)(jax.random.key(seed)))
    return net._replace(params={name: entry for name, entry in net.params.items() if name not in (PARTS[train] or ())})


def scale(examples: Examples, rows: np.ndarray | None = None) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel (the last axis) over some rows, or all, of uint8 pixels in units of 255."""
    x = np.asarray(examples.x)
    if x.strides[0] == 0:  # one row many times, as in `stand_in.py`
        x, rows = x[:1], None
    axes, number = tuple(range(x.ndim - 1)), len(x) if rows is None else len(rows)
    block_of = lambda start, size: x[start : start + size] if rows is None else x[rows[start : start + size]]
    if x.dtype == np.uint8:  # sums of whole numbers, block by block: several times faster, and exact
        sums = np.zeros((2, math.prod(x.shape[1:])), np.uint64)
        for start in range(0, number, 64):
            wide = block_of(start, 64).reshape(-1, sums.shape[1]).astype(np.uint32)
            sums += np.stack([wide.sum(0, dtype=np.uint32), (wide * wide).sum(0, dtype=np.uint32)])
        total, squares = sums.reshape(2, -1, x.shape[-1]).sum(1).tolist()
        number = number * math.prod(x.shape[1:-1])
        mean = np.array(total) / number / 255
        std = np.array([(q * number - s * s) ** 0.5 for s, q in zip(total, squares, strict=True)]) / number / 255
    elif in_file(x):
        mean, std = _of_file_blocks(x.shape, number, block_of)
    else:
        x = x if rows is None else x[rows]
        mean, std = x.mean(axes, dtype=np.float64), x.std(axes, dtype=np.float64)
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())


def _of_file_blocks(shape: tuple[int, ...], number: int, block_of: Callable) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation [C] of so many rows of an array in a file, a thousand rows in memory at a time."""
    sums = np.zeros((2, shape[-1]))
    for start in range(0, number, 1000):
        block = block_of(start, 1000).reshape(-1, shape[-1]).astype(np.float64)
        sums += np.stack([block.sum(0), (block * block).sum(0)])
    mean, square = sums * shape[-1] / (number * math.prod(shape[1:]))
    return mean, np.sqrt(np.maximum(square - mean**2, 0))


# ------------------------------------------------------------------------------------------------------------------ texts


def _read(asked: Asked) -> language.Prepared:
    data, (one,) = asked.data, asked.networks
    return language.prepare(data.source(), data.directory, data.clients, data.seed, one.found())


def _answered(asked: Asked, one: Network, data: Any, everybodys: Any, shapes_only: bool) -> Task:
    """The task to answer instructions."""
    del one, data, everybodys
    return language.task(_read(asked), asked.adapter, shapes_only)


ROWS = Kind(_divided, _classified, public)
TEXTS = Kind(lambda asked: _read(asked).data, _answered, public)
