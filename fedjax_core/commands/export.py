"""Writes a model of a run into one file, for `fedjax-core predict` and for other programs
(safetensors).

  fedjax-core export runs/fedavg --out=model.safetensors                 the global model
  fedjax-core export runs/local --out=model.safetensors --client=3       a client's own model, by number or name
  fedjax-core export runs/fedavg --out=vit/model.safetensors --layout=transformers

Layouts: own, which `fedjax-core predict` reads; timm and transformers, for ViTs and ResNets (the
latter with a config.json beside). A model that is more than one network, such as FedRoD's with two
heads, is saved as what its method predicts with (own layout only). The data must still be where the
run found them; the run's directory is only read.
"""

import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_core import experiment, registry
from fedjax_core.algorithm import TARGETS
from fedjax_core.commands.analyses.context import TRUST
from fedjax_core.commands.main import run_and_exit
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.engine.simulator import Simulator
from fedjax_core.experiment.input_normalization import Scaling
from fedjax_core.experiment.lookup import Network
from fedjax_core.experiment.resolve_config import ResolvedConfig
from fedjax_core.experiment.run_header import count_trained
from fedjax_core.language import clip_task
from fedjax_core.reporting import console
from fedjax_core.storage import export_model as files
from fedjax_core.storage import export_predictor, pretrained_weights

WINDOWED = ("heterofl", "fedrolex")  # methods whose clients hold parts of the widest network


def export(
    run: str | os.PathLike,
    out: str | os.PathLike,
    *,
    client: int | str | None = None,
    model: str | None = None,
    done: int | None = None,
    layout: str = "own",
    trust: bool = False,
) -> dict[str, Any]:
    """Writes a model of a run.

    Args:
      client: whose model, by number or name; None: the global one.
      model: of the client's models, where it has several.
      done: the round after which; None: the selected one, if the run selects one, else that of the
        last checkpoint.
      layout: of the tensors, one of `pretrained_weights.WRITTEN`.
      trust: whether code that the run's config names may be imported, though it was not begun here
        (`experiment.load`).

    Returns:
      The description in the file: `storage.export_model.FORM`, "offset", "limit", "input_dtype",
      "method", "predictor", "client", "round", "config" and what `storage.export_model.add_usage`
      says; of a model that is not one network also `storage.export_predictor.FORM`.

    Raises:
      ValueError: there is no such model, or it is not one network and has no such layout; no such
        checkpoint; other data.
      OSError: there is no run, its data are not there, or the file cannot be written.
    """
    registry.check_choice("layout", layout, pretrained_weights.WRITTEN)
    if not os.path.basename(out) or os.path.isdir(os.path.expanduser(out)):
        raise ValueError(f"out={os.fspath(out)!r} must be a file, such as model.safetensors")
    out = os.path.expanduser(out)
    config, simulation, state = experiment.load(run, done, trust=trust)
    resolved = experiment.resolve(config)
    _check_exportable(run, resolved, simulation)
    client = find_client(client, simulation.spec.data.client_names)
    name = _choose_model(resolved.fields["method.name"], list(simulation.spec.abstract_algorithm(0).predict), client, model)
    view = simulation.client_view(state, _find_widest_client(simulation) if client is None else client)
    data = simulation.spec.data
    sample, net = np.asarray(data.test.x[:32]), None
    try:
        net = files.find_network(view, name, sample)
    except files.NotOneNetwork:
        if layout != "own" or resolved.public is not None:
            raise
    network = resolved.networks[view.client % len(resolved.networks)]
    clean = data if resolved.adversary is None else experiment.dataset(config)  # without poisoned examples
    scaling = experiment.scaling_of(network, resolved.normalise, clean)
    if scaling is None and layout == "own":
        what = f"{run} was trained on {data.train.x.dtype} inputs, which are not normalised"
        raise ValueError(f"{what}; a saved model needs normalised inputs, and no token ids, so use experiment.load in Python")
    outputs = data.classes if net is None else view.predict(name, view.holds[name], sample)["logits"].shape[-1]
    description = _describe_model(resolved, network, clean, scaling, outputs)
    description |= {"predictor": name, "client": client, "round": int(state.round), "config": config.to_dict()}
    description |= experiment.list_code_digests(resolved.lookups)
    description = files.add_usage(description, layout)
    os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
    if net is None:
        description |= {"options": dict(resolved.method.options), "population": data.clients}
        description |= {"train": resolved.train, "adapter": resolved.fields["adapter"]}
        builders = experiment.method_builder, experiment.model_builder
        try:
            export_predictor.save_predictor(out, view, name, sample, description, *builders)
        except ValueError as error:
            if resolved.method.name not in WINDOWED or name == "global":
                raise
            what = f"{run}: model {name!r} of client {view.client} is computed with the networks of others, and cannot be exported"
            raise ValueError(f"{what} alone; that of a client with the widest network can, or the global one") from error
        return description
    if layout == "own":
        files.save_model(out, net, description, experiment.model_builder)
        return description
    beside = os.path.join(os.path.dirname(out), "config.json")
    if layout == "transformers":
        pretrained_weights.check_config(beside)
    pretrained_weights.write_weights(out, net, layout, description)
    if layout == "transformers":
        pretrained_weights.write_config(beside, net, description)
    return description


def _check_exportable(run: str | os.PathLike, resolved: ResolvedConfig, simulation: Simulator) -> None:
    """Raises ValueError for a run whose models are no classifiers of normalised inputs."""
    if resolved.episodes is not None:
        raise ValueError(
            f"{run} was trained on {resolved.fields['task']}: its network has no classes of its own, and cannot be exported"
        )
    if any(network.resolved.function is clip_task.Spec for network in resolved.networks):
        raise ValueError(f"{run} trained prompts of CLIP, which are no network without its texts; use experiment.load in Python")
    if resolved.is_for_texts:
        raise ValueError(
            f"{run} trained a language model on texts, and an exported model has normalised inputs; use experiment.load"
        )
    if simulation.spec.targets != "classes":
        what = f"{run} was trained on {simulation.spec.targets}: {TARGETS[simulation.spec.targets]}"
        raise ValueError(f"{what}; an exported model classifies, so use experiment.load in Python")


def _describe_model(
    resolved: ResolvedConfig, network: Network, data: FederatedData, scaling: Scaling | None, outputs: int
) -> dict[str, Any]:
    """Returns what the file says of a network: its inputs, its classes and its method.

    Args:
      data: without poisoned examples.
      scaling: mean, std and limit of inputs; None: they are not normalised.
      outputs: logits; FedMD predicts classes of public data too.
    """
    mean, std, limit = scaling or (None, None, None)
    names = [*data.class_names, *(f"public {c}" for c in range(outputs - data.classes))]
    return {
        "model": experiment.spell_network(network),
        "classes": len(names),
        "class_names": names,
        "input_shape": list(data.train.x.shape[1:]),
        "input_dtype": str(data.train.x.dtype),
        "mean": mean,
        "std": std,
        "offset": None if data.x_offset is None else data.x_offset.tolist(),
        "limit": limit,
        "statistics": resolved.statistics,
        "method": resolved.method.name,
    }


def find_client(client: int | str | None, names: Sequence[str]) -> int | None:
    """Returns the number of a client that is given by its number or its name; digits are a number.

    Raises:
      ValueError: no client has this name.
    """
    if not isinstance(client, str):
        return client
    if re.fullmatch("-?[0-9]+", client):
        return int(client)
    if client not in names:
        hint = registry.suggest_name("client", client, names)
        raise ValueError(f"client={client!r} is not the name of a client; clients.csv has {'names' if names else 'numbers'}.{hint}")
    return names.index(client)


def _find_widest_client(simulation: Simulator) -> int:
    """Returns a client with the network of most parameters, whose view of the server's model is the whole."""
    return int(max(simulation.spec.groups, key=count_trained).clients[0])


def _choose_model(method: str, names: Sequence[str], client: int | None, model: str | None) -> str:
    own = [name for name in names if name != "global"]
    if client is None:
        if model not in (None, "global"):
            raise ValueError(f"model={model} is one of a client; say whose with --client")
        if "global" not in names:
            raise ValueError(f"method {method} has no global model; say whose model with --client")
        return "global"
    if not own:
        raise ValueError(f"method {method} has no models of single clients, only a global one; leave --client={client} out")
    if model is None and len(own) > 1:
        raise ValueError(f"method {method} has several models of a client; choose one with --model: {', '.join(own)}")
    return own[0] if model is None else model


def _parser() -> console.Parser:
    parser = console.Parser("export", __doc__)
    parser.add_argument("run", help="directory of a run")
    parser.add_argument("--out", required=True, help="the file, such as model.safetensors")
    parser.add_argument("--client", help="whose model, by number or name; by default the global one")
    parser.add_argument("--model", help="which of a client's models, where it has several")
    parser.add_argument("--layout", default="own", help=f"one of {', '.join(pretrained_weights.WRITTEN)}")
    parser.add_argument("--trust", action="store_true", help=TRUST)
    parser.add_argument("--round", type=int, dest="done", help="by default the selected one, else the last with a checkpoint")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Parses, exports. Returns 0; 1 for an error, reported in one line; 2 for a wrong command line;
    130 if interrupted."""
    console.send_warnings_to_stderr()
    try:
        given = _parser().parse_args(arguments)
    except ValueError as error:
        return console.fail(error, 2)

    def write_export() -> None:
        experiment.cache_compiled_programs(experiment.COMPILATION_CACHE)
        options = {name: getattr(given, name) for name in ("client", "model", "done", "layout", "trust")}
        description = export(given.run, given.out, **options)
        console.say(
            f"{given.out}: the {description['predictor']} model of {description['method']}, {description['model']}, "
            f"after round {description['round']}"
        )

    return console.run_command(write_export)


if __name__ == "__main__":
    run_and_exit("fedjax_core.commands.export", sys.argv[1:])
