"""The engine as a contender: `python -m tests.benchmarks.ours '{"workload": "a"}'`.

Options beside the workload, by default the engine's own choice: `devices` (on a CPU: number of
simulated ones), `chunk`, `dtype` ("float32", "tf32", "bfloat16" of the computation; parameters and
sums stay float32), `conv_form`, `cache` (a directory for compiled programs).
"""

import functools
import json
import math
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core import experiment, nn
from fedjax_core.algorithm import Examples, Net
from fedjax_core.data import federated_data, sources
from fedjax_core.engine import client_loop, simulator
from fedjax_core.task import Model, Task, make_task
from fedjax_core.training import local_training
from tests.benchmarks import protocol
from tests.benchmarks.workloads import WORKLOADS, Workload

PRECISION = {"float32": "highest", "tf32": "tensorfloat32", "bfloat16": "default"}


class Compiling:
    """Counts what jax has compiled in this process."""

    seconds = 0.0
    programs = 0
    listening = False

    @classmethod
    def listen(cls, event: str, duration_secs: float, **kwargs: Any) -> None:
        del kwargs
        if event.startswith("/jax/core/compile/"):
            cls.seconds += duration_secs
            cls.programs += event.endswith("backend_compile_duration")


def task_of(workload: Workload, *, dtype: str = "float32", conv_form: str | None = None) -> Task:
    """Returns the workload's task."""
    compute = jnp.bfloat16 if dtype == "bfloat16" else None
    if workload.model == "prompts":
        return prompted(workload, compute)
    options = dict(workload.options)
    if conv_form and workload.model != "mlp":
        options["conv_form"] = conv_form
    model = nn.build(workload.model, workload.classes, workload.shape, dtype=compute, **options)
    return make_task(model, classes=workload.classes, population=workload.population)


def federation(workload: Workload) -> federated_data.FederatedData:
    """Returns the workload's data; clients have no test examples."""
    x, y = workload.data()
    names = tuple(str(k) for k in range(workload.classes))
    dataset = sources.Dataset(workload.name, Examples(x, y), Examples(x[:1000], y[:1000]), names)
    nothing = [np.zeros(0, np.int32)] * workload.population
    return federated_data.from_index(dataset, list(workload.index()), nothing)


def build(
    workload: Workload,
    *,
    devices: int | None = None,
    chunk: int | None = None,
    dtype: str = "float32",
    conv_form: str | None = None,
    task: Task | None = None,
) -> simulator.Simulator:
    """Returns the workload as a simulation."""
    task = task_of(workload, dtype=dtype, conv_form=conv_form) if task is None else task
    return simulator.Simulator(
        simulator.build_spec(
            simulator.one_group(method(workload), task, workload.population),
            federation(workload),
            cohort=workload.cohort,
            plan=client_loop.choose_plan(workload.cohort, chunk=chunk, devices=devices),
            hold=workload.hold,
        )
    )


def method(workload: Workload, **more: Any) -> Any:
    """Returns the workload's method with its options and further ones."""
    arguments = {**(workload.arguments or {"epochs": workload.epochs}), **more}
    return functools.partial(
        experiment.method_builder(workload.method), optimizer=local_training.sgd(workload.lr), batch=workload.batch, **arguments
    )


def prompted(workload: Workload, dtype: Any = None) -> Task:
    """Returns a task with a frozen transformer; a client trains its prompts and its head."""
    o = workload.options
    width, depth, patch = o["width"], o["depth"], o["patch"]
    side = workload.shape[0] // patch

    def normal(key, *shape):
        return jax.random.normal(key, shape) / math.sqrt(shape[-2] if len(shape) > 1 else width)

    def backbone(key):
        keys = iter(jax.random.split(key, 3 + 4 * depth))
        arrays: dict[str, Any] = {
            "patch": normal(next(keys), patch * patch * workload.shape[2], width),
            "place": normal(next(keys), 1 + side * side, width),
            "class": normal(next(keys), width),
        }
        for i in range(depth):
            shapes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
            arrays[f"layer{i + 1}"] = {name: normal(next(keys), *shape) for name, shape in shapes.items()}
        return arrays

    def network(frozen):
        def init(key):
            prompts, head = jax.random.split(key)
            return Net(
                {
                    "prompt": normal(prompts, o["prompts"], width),
                    "head": {"kernel": normal(head, width, workload.classes), "bias": jnp.zeros(workload.classes)},
                }
            )

        def features(net, x, key=None, train=False, mask=None):
            del key, train, mask
            b = x.shape[0]
            f, prompt = jax.tree.map(lambda w: w.astype(dtype or jnp.float32), (frozen, net.params["prompt"]))
            x = x.astype(f["patch"].dtype).reshape(b, side, patch, side, patch, -1).swapaxes(2, 3).reshape(b, side * side, -1)
            x = x @ f["patch"] + f["place"][None, 1:]
            first = jnp.broadcast_to((f["class"] + f["place"][0])[None, None], (b, 1, width))
            x = jnp.concatenate([first, jnp.broadcast_to(prompt[None], (b, *prompt.shape)), x], 1)
            for i in range(depth):
                layer = f[f"layer{i + 1}"]
                q, k, v = (a.reshape(b, -1, o["heads"], width // o["heads"]) for a in jnp.split(_norm(x) @ layer["qkv"], 3, -1))
                scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1]), axis=-1)
                x = x + jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(x.shape) @ layer["out"]
                x = x + jax.nn.gelu(_norm(x) @ layer["up"]) @ layer["down"]
            return _norm(x[:, 0]).astype(jnp.float32), net.stats

        def head(net, features):
            return features @ net.params["head"]["kernel"] + net.params["head"]["bias"][None]

        def apply(net, x, key=None, train=False, mask=None):
            found, stats = features(net, x, key, train, mask)
            return {"logits": head(net, found), "features": found}, stats

        return Model(init, apply, features, head, "prompted transformer")

    frozen = jax.tree.map(np.asarray, jax.jit(backbone)(jax.random.key(1)))
    return Task(network, workload.classes, workload.population, frozen=frozen)


def _norm(x):
    x = x - jnp.mean(x, -1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def matmul_rate(dtype: str) -> float:
    """Returns the FLOP per second of a large matrix product on one device."""
    n = 1024 if jax.default_backend() == "cpu" else 8192
    a = jnp.ones((n, n), jnp.bfloat16 if dtype == "bfloat16" else jnp.float32)
    product = jax.jit(lambda a: a @ a)
    jax.block_until_ready(product(a))
    best = math.inf
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready([product(a) for _ in range(4)])
        best = min(best, time.perf_counter() - start)
    return 4 * 2 * n**3 / best


def set_up(devices: int | None = None, dtype: str = "float32", cache: str | None = None) -> None:
    """Sets what jax reads before it looks for devices."""
    if devices is None:
        experiment.use_all_cores()
    else:
        jax.config.update("jax_num_cpu_devices", devices)
    if jax.default_backend() != "cpu":  # on CPUs, float32 products are exact
        jax.config.update("jax_default_matmul_precision", PRECISION[dtype])
    if cache:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    if not Compiling.listening:
        Compiling.listening = True
        jax.monitoring.register_event_duration_secs_listener(Compiling.listen)


def main(options: dict[str, Any]) -> None:
    """Builds, warms up, and serves."""
    workload = WORKLOADS[options.pop("workload")]
    set_up(options.get("devices"), options.get("dtype", "float32"), options.pop("cache", None))
    rate = matmul_rate(options.get("dtype", "float32"))
    simulated = build(workload, **options)
    state = simulated.init(seed=0)
    Compiling.seconds, start = 0.0, time.perf_counter()
    state, _ = simulated.run_rounds(state, workload.rounds)
    first = time.perf_counter() - start
    compiled, programs = Compiling.seconds, Compiling.programs
    held = [state]

    def run(rounds):
        held[0], records = simulated.run_rounds(held[0], rounds)
        jax.block_until_ready(held[0])
        return {"recompiled": Compiling.programs - programs, "loss": records[-1].get("train/loss")}

    device = jax.devices()[0]
    memory = {} if device.platform == "cpu" else {"device_memory": (device.memory_stats() or {}).get("peak_bytes_in_use")}
    protocol.serve(
        run,
        compile_seconds=compiled,
        first_seconds=first,
        matmul_rate=rate,
        device=device.device_kind,
        plan=simulated.spec.plan._asdict(),
        versions={"jax": jax.__version__},
        **memory,
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
