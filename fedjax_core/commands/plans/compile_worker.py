"""Compiles some programs of a plan for one target, in a process of its own, and writes the results after each.

The compiler can end the process, or take longer than it may: then what is done is written, and another process goes on.
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
from fedjax_core.commands.plans import device_targets, program_costs
from fedjax_core.data import row_readers
from fedjax_core.data.ragged_index import RaggedIndex
from fedjax_core.engine import aot, dispatch, flop_count
from fedjax_core.engine.sharding import data_placement
from fedjax_core.engine.simulator import Simulator
from fedjax_core.engine.vmapped_runs import VmappedSeeds, find_vmap_obstacle
from fedjax_core.experiment import build_simulator, mock_data
from fedjax_core.nn.kernels import conv
from fedjax_core.storage.json_files import lists_to_tuples, write_json

_GIB = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_OVER = re.compile(r"\(([\d.]+)([KMGT])\) exceeds available HBM|Used ([\d.]+)([KMGT]) of [\d.]+[KMGT] hbm")


def make_simulation(config: Any, target: device_targets.Target, counts: mock_data.Counts) -> Simulator:
    """Makes a config's simulation on a target's devices, without data and weights.

    All devices of several hosts are used, as in a run.
    """
    devices = device_targets.target_devices(target)
    if config.plan.devices is None and len({device.process_index for device in devices}) > 1:
        config.plan.devices = len(devices)
    return build_simulator.build(
        config, shapes_only=True, devices=devices, pipeline=mock_data.mock_pipeline(experiment.resolve(config), counts)
    )


def describe_simulation(sim: Simulator, num_runs: int = 1) -> dict[str, Any]:
    """Describes a simulation without compiling. `num_runs`: runs that train at once, where they can."""
    alone = find_vmap_obstacle(sim) if num_runs > 1 else ""
    num_runs = 1 if alone else num_runs
    first = sim.spec.mesh.devices.flat[0]
    chip, sizes = data_placement.device_spec(first), RaggedIndex.from_lists(sim.spec.data.train_index).size
    if chip is not None and first not in jax.devices():
        limit = chip.memory
    else:
        limit = data_placement.memory_limit(sim.spec.mesh) or (
            chip.memory if chip else int(row_readers.machine_memory() / sim.spec.mesh.devices.size)
        )
    return {
        "device": first.device_kind,
        "devices": int(sim.spec.mesh.devices.size),
        "limit": limit,
        "plan": sim.spec.plan._asdict(),
        "data on": sim.spec.placement.where,
        "population": sim.spec.population,
        "cohort": sim.spec.sampler.size,
        "places": sim.spec.sampler.slots,
        "rows": {"all": int(sizes.sum()), "mean": float(sizes.mean()), "most": int(sizes.max())},
        "processes": len({device.process_index for device in sim.spec.mesh.devices.flat}),
        "hold": sim.spec.hold,
        "divided": sim.compiled.layout.is_model_parallel,
        "chip": None if chip is None else {"flops": chip.flops, "bandwidth": chip.bandwidth, "source": chip.source},
        "num_runs": num_runs,
        "alone": alone,
        "bytes": resident_bytes(sim, num_runs),
    }


def resident_bytes(sim: Simulator, num_runs: int = 1) -> dict[str, float]:
    """Returns the bytes on a device between rounds; each lane has states of its own."""
    arrays, state = aot.resident_shapes(sim.compiled)
    shard_bytes = lambda leaf: float(np.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize)
    sum_bytes = lambda tree: sum(map(shard_bytes, jax.tree.leaves(tree)), 0.0)
    return {
        "rows of data": sum_bytes((arrays.train, arrays.test)),
        "frozen and public arrays": sum_bytes(arrays.tasks),
        "client states": num_runs * sum_bytes(state.clients),
        "server state": num_runs * sum_bytes(state.server),
        "earlier broadcasts": num_runs * sum_bytes(state.ring),
    }


def trace_programs(sim: Simulator, parts: tuple[str, ...], num_runs: int = 1) -> dict[str, Callable[[], Any]]:
    """Returns `aot.trace_programs`, with rounds of so many runs at once."""
    traced_programs = aot.trace_programs(sim, parts)
    if num_runs > 1:
        several = VmappedSeeds(sim, num_runs)
        rounds = {aot.ROUND: several.trace, aot.SCORED_ROUND: functools.partial(several.trace, True)}
        traced_programs |= {name: traced for name, traced in rounds.items() if name in traced_programs}
    return traced_programs


def expected_active_share(sim: Simulator) -> float:
    """Returns the mean share of a round's slots, of all groups, whose clients return."""
    sampler = sim.spec.sampler
    slots = sum(min(sampler.slots, len(group.clients)) for group in sim.spec.groups)
    return sampler.size / slots * (1 - sim.spec.dropout)


def analyze_program(traced: Any, sim: Simulator, active_share: float, drop_last: bool) -> dict[str, Any]:
    """Compiles and analyzes a program.

    Args:
      active_share: of its client slots, on average.
      drop_last: the config's.

    Returns:
      Fields of plan.json; "needs" if it is too large to compile.
    """
    clock = time.perf_counter()
    lowered = traced.lower()
    lowering_seconds = time.perf_counter() - clock
    try:
        compiled, hlo_text = _compile(lowered, sim)
    except jax.errors.JaxRuntimeError as error:
        if not dispatch.is_out_of_memory(error):
            raise
        match = _OVER.search(str(error))
        need = float(match[1] or match[3]) * _GIB[match[2] or match[4]] if match else None
        return {"fits": False, "needs": need, "says": str(error).splitlines()[0], "seconds": time.perf_counter() - clock}
    hlo, sizes = program_costs.Program(hlo_text), compiled.memory_analysis()
    if sizes is None:
        raise ValueError("this version of jax does not report the memory of compiled programs")
    examples = RaggedIndex.from_lists(sim.spec.data.train_index).size
    clients = program_costs.ClientLoops(examples, active_share, sim.spec.host_arrays.settings, drop_last)
    need = sizes.argument_size_in_bytes + sizes.temp_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return {
        "fits": True,
        "arguments": sizes.argument_size_in_bytes,
        "temporary": sizes.temp_size_in_bytes,
        "outputs": sizes.output_size_in_bytes - sizes.alias_size_in_bytes,
        "peak": max(need, getattr(sizes, "peak_memory_in_bytes", 0)),
        "flops": flop_count.count_flops(traced.jaxpr, clients.trip_count)
        / (sim.spec.plan.model if sim.compiled.layout.is_model_parallel else 1),  # at least so many
        "traffic": hlo.count_traffic(clients.trip_count),
        "collectives": [collective._asdict() for collective in hlo.count_collectives(clients.trip_count)],
        "seconds": time.perf_counter() - clock,
        "lowering": lowering_seconds,
    }


def _compile(lowered: Any, sim: Simulator) -> tuple[Any, str]:
    """Compiles a lowered program; returns it with its optimized text.

    The compiler of TPUs writes that text to a folder too: a program of libtpu 0.0.52 that leaves a gather to a v5p's SparseCores
    cannot be asked for its own ("async-update instruction should have 1 operands but sees 3").
    """
    if sim.spec.mesh.devices.flat[0].platform != "tpu":
        compiled = lowered.compile()
        return compiled, compiled.as_text() or ""
    with tempfile.TemporaryDirectory() as folder:
        compiled = lowered.compile({"xla_dump_to": folder, "xla_dump_hlo_as_text": True})
        try:
            return compiled, compiled.as_text() or ""
        except jax.errors.JaxRuntimeError:
            (text,) = Path(folder).glob("*.after_optimizations.txt")
            return compiled, text.read_text(encoding="utf-8")


def main() -> None:
    """Reads a request from standard input, and writes the results to its file."""
    own_packages.import_bundled_packages()
    request = json.load(sys.stdin)
    out, counts = Path(request["out"]), mock_data.Counts(**lists_to_tuples(request["counts"]))
    target, config = device_targets.Target(*request["target"]), ConfigDict(lists_to_tuples(request["config"]))
    if request["cores"]:
        experiment.use_all_cores()
    done: dict[str, Any] = {"programs": request["done"]}
    try:
        backend = {"cpu": "cpu", "tpu": "tpu"}.get(device_targets.target_devices(target)[0].platform, "gpu")
        with conv.tracing_for(backend):
            _end_after(request["seconds"])
            sim = make_simulation(config, target, counts)
            done["about"] = describe_simulation(sim, experiment.seeds_at_once(config))
            done["about"]["available"] = len(device_targets.target_devices(target))
            traced = trace_programs(sim, tuple(request["parts"]), done["about"]["num_runs"])
            done["names"] = list(traced)
            write_json(out, done)
            for name in (name for name in traced if name not in request["done"]):
                _end_after(request["seconds"])
                active_share = expected_active_share(sim) if name in (aot.ROUND, aot.SCORED_ROUND) else 1.0
                try:
                    done["programs"][name] = analyze_program(traced[name](), sim, active_share, bool(config.get("drop_last")))
                except (ValueError, TypeError, OSError) as error:  # the other programs are compiled all the same
                    message = " ".join(str(error).split())
                    done["programs"][name] = {"fits": None, "says": message, "limit_s": request["seconds"]}
                write_json(out, done)
    except (ValueError, TypeError, OSError) as error:
        done["error"] = " ".join(str(error).split())
        write_json(out, done)
    finally:
        _end_after(0)


def _end_after(seconds: int) -> None:
    """Ends this process after so many seconds, also in the compiler; 0: never. Windows has no such signal."""
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)


if __name__ == "__main__":
    main()
