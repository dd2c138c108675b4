"""One process of a plan: it compiles some programs for one target, and writes what it finds after each of them.

The compiler can end the process, or take longer than it may: then what is done is there, and another process goes on.
"""

import functools
import json
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from fedjax_core import experiment, own_packages
from fedjax_core.commands.plans import device_targets, flop_count, hlo_analysis, loops
from fedjax_core.data import memory
from fedjax_core.data.ragged_index import RowLists
from fedjax_core.engine import aot, chips, client_loop
from fedjax_core.engine.simulator import Simulation
from fedjax_core.engine.vmapped_runs import Lanes, reason
from fedjax_core.experiment import build_simulator, mock_data
from fedjax_core.experiment.run_experiment import tuples
from fedjax_core.nn.kernels import conv
from fedjax_core.storage.json_files import write_json

_GIB = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_OVER = re.compile(r"\(([\d.]+)([KMGT])\) exceeds available HBM|Used ([\d.]+)([KMGT]) of [\d.]+[KMGT] hbm")


def simulation(config: Any, target: device_targets.Target, counts: mock_data.Counts) -> Simulation:
    """A config's simulation on a target's devices, without its data and weights. Of several hosts' devices all are used, as a
    run does."""
    there = device_targets.devices(target)
    if config.plan.devices is None and len({device.process_index for device in there}) > 1:
        config.plan.devices = len(there)
    return build_simulator.build(config, shapes_only=True, devices=there, kind=mock_data.kind(experiment.resolve(config), counts))


def about(sim: Simulation, lanes: int = 1) -> dict[str, Any]:
    """What is known of a simulation without compiling. `lanes`: of so many runs at once, if it can have lanes."""
    alone = reason(sim) if lanes > 1 else ""
    lanes = 1 if alone else lanes
    first = sim.mesh.devices.flat[0]
    chip, sizes = chips.of(first), RowLists.of(sim.data.train_index).size
    if chip is not None and first not in jax.devices():
        limit = chip.memory
    else:
        limit = client_loop.memory_limit(sim.mesh) or (chip.memory if chip else int(memory.there() / sim.mesh.devices.size))
    return {
        "device": first.device_kind,
        "devices": int(sim.mesh.devices.size),
        "limit": limit,
        "plan": sim.plan._asdict(),
        "data on": sim.placed.where,
        "population": sim.population,
        "cohort": sim.cohort,
        "places": sim.places,
        "rows": {"all": int(sizes.sum()), "mean": float(sizes.mean()), "most": int(sizes.max())},
        "processes": len({device.process_index for device in sim.mesh.devices.flat}),
        "hold": sim.hold,
        "divided": sim.divided,
        "chip": None if chip is None else {"flops": chip.flops, "bandwidth": chip.bandwidth, "source": chip.source},
        "lanes": lanes,
        "alone": alone,
        "bytes": parts(sim, lanes),
    }


def parts(sim: Simulation, lanes: int = 1) -> dict[str, float]:
    """Bytes on a device of what lies there between rounds; each lane has states of its own."""
    held, state = aot.between_rounds(sim)
    mine = lambda leaf: float(np.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize)
    nbytes = lambda tree: sum(map(mine, jax.tree.leaves(tree)), 0.0)
    return {
        "rows of data": nbytes((held.train, held.test)),
        "frozen and public arrays": nbytes(held.tasks),
        "client states": lanes * nbytes(state.clients),
        "server state": lanes * nbytes(state.server),
    }


def programs(sim: Simulation, parts: tuple[str, ...], lanes: int = 1) -> dict[str, Callable[[], Any]]:
    """As `aot.programs`; rounds are those of so many lanes at once."""
    found = aot.programs(sim, parts)
    if lanes > 1:
        of_lanes = Lanes(sim, lanes)
        rounds = {aot.ROUND: of_lanes.traced, aot.SCORED_ROUND: functools.partial(of_lanes.traced, True)}
        found |= {name: traced for name, traced in rounds.items() if name in found}
    return found


def present(sim: Simulation) -> float:
    """How many of a round's places are taken by clients that come back, on average."""
    return sim.cohort / sim.places * (1 - sim.dropout)


def analysed(traced: Any, sim: Simulation, part: float = 1.0) -> dict[str, Any]:
    """One program, compiled; "short" is by how many bytes it does not fit.

    Args:
      traced: it.
      sim: whose it is.
      part: of its places for clients that are taken, on average.
    """
    clock = time.perf_counter()
    lowered = aot.lowered(traced)
    before = time.perf_counter() - clock
    try:
        compiled, written = _compiled(lowered, sim)
    except jax.errors.JaxRuntimeError as error:
        if not client_loop.out_of_memory(error):
            raise
        found = _OVER.search(str(error))
        need = float(found[1] or found[3]) * _GIB[found[2] or found[4]] if found else None
        return {"fits": False, "needs": need, "says": str(error).splitlines()[0], "seconds": time.perf_counter() - clock}
    text, sizes = hlo_analysis.Program(written), compiled.memory_analysis()
    if sizes is None:
        raise ValueError("this jax's compiler does not tell how much memory its programs take")
    clients = loops.Clients(RowLists.of(sim.data.train_index).size, part)
    need = sizes.argument_size_in_bytes + sizes.temp_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return {
        "fits": True,
        "arguments": sizes.argument_size_in_bytes,
        "temporary": sizes.temp_size_in_bytes,
        "outputs": sizes.output_size_in_bytes - sizes.alias_size_in_bytes,
        "peak": max(need, getattr(sizes, "peak_memory_in_bytes", 0)),
        "flops": flop_count.count(traced.jaxpr, clients.trips) / (sim.plan.model if sim.divided else 1),  # at least so many
        "traffic": text.traffic(clients.trips),
        "collectives": [one._asdict() for one in text.collectives(clients.trips)],
        "seconds": time.perf_counter() - clock,
        "lowering": before,
    }


def _compiled(lowered: Any, sim: Simulation) -> tuple[Any, str]:
    """A lowered program compiled, and what the compiler made of it as text.

    The compiler of TPUs writes that text to a folder too: a program of libtpu 0.0.52 that leaves a gather to a v5p's SparseCores
    cannot be asked for its own ("async-update instruction should have 1 operands but sees 3").
    """
    if sim.mesh.devices.flat[0].platform != "tpu":
        compiled = lowered.compile()
        return compiled, compiled.as_text() or ""
    with tempfile.TemporaryDirectory() as folder:
        compiled = lowered.compile({"xla_dump_to": folder, "xla_dump_hlo_as_text": True})
        try:
            return compiled, compiled.as_text() or ""
        except jax.errors.JaxRuntimeError:
            (text,) = Path(folder).glob("*.after_optimizations.txt")
            return compiled, text.read_text()


def main() -> None:
    """Reads what is to be done from standard input, and writes what is found to a file."""
    own_packages.take_ours()
    asked = json.load(sys.stdin)
    out, counts = Path(asked["out"]), mock_data.Counts(**tuples(asked["counts"]))
    target, config = device_targets.Target(*asked["target"]), ConfigDict(tuples(asked["config"]))
    if asked["cores"]:
        experiment.use_all_cores()
    done: dict[str, Any] = {"programs": asked["done"]}
    try:
        backend = {"cpu": "cpu", "tpu": "tpu"}.get(device_targets.devices(target)[0].platform, "gpu")
        with conv.compiled_for(backend):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # it ends the process wherever it is, in the compiler too
            signal.alarm(asked["seconds"])
            sim = simulation(config, target, counts)
            done["about"] = about(sim, experiment.lanes_of(config))
            found = programs(sim, tuple(asked["parts"]), done["about"]["lanes"])
            done["there"] = list(found)
            write_json(out, done)
            for name in (name for name in found if name not in asked["done"]):
                signal.alarm(asked["seconds"])
                part = present(sim) if name in (aot.ROUND, aot.SCORED_ROUND) else 1.0
                try:
                    done["programs"][name] = analysed(found[name](), sim, part)
                except (ValueError, TypeError, OSError) as error:  # of this program; the others are compiled all the same
                    said = " ".join(str(error).split())
                    done["programs"][name] = {"fits": None, "says": said, "limit_s": asked["seconds"]}
                write_json(out, done)
    except (ValueError, TypeError, OSError) as error:
        done["error"] = " ".join(str(error).split())
        write_json(out, done)
    finally:
        signal.alarm(0)


if __name__ == "__main__":
    main()
