"""A bare torch loop over clients, no framework: `python -m tests.benchmarks.peers.torch_loop
'{"workload": "a"}'`.

With "check" it trains from the weights and on the batches of a file written by `equality.py`, and
reports the difference of the mean.
"""

import dataclasses
import json
import os
import sys

import numpy as np
import torch

from tests.benchmarks import protocol
from tests.benchmarks.peers import torch_models
from tests.benchmarks.workloads import SEED, WORKLOADS


def main(options):
    """Warms up and serves; with "check", compares and ends."""
    workload = WORKLOADS[options["workload"]]
    torch.manual_seed(SEED)
    torch.set_num_threads(options.get("threads") or len(os.sched_getaffinity(0)))
    if "check" in options:
        return check(dataclasses.replace(workload, lr=options["lr"]), options["check"])
    model, (x, y) = torch_models.build(workload), torch_models.tensors(workload)
    if options.get("channels_last"):
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    index = torch.from_numpy(workload.index())
    rng = np.random.default_rng(SEED)
    mine = [p for p in model.parameters() if p.requires_grad] + [b for b in model.buffers() if b.dtype.is_floating_point]
    personal = workload.method == "local"
    mine = [p for p in mine if not personal or isinstance(p, torch.nn.Parameter)]
    server = [p.detach().clone() for p in mine]
    clients = {}  # for methods with client models

    def one_round():
        total = [torch.zeros_like(p) for p in server]
        seen = 0
        for i in rng.choice(workload.population, workload.cohort, replace=False).tolist():
            start = clients.get(i, server)
            with torch.no_grad():
                for p, s in zip(mine, start, strict=True):
                    p.copy_(s)
            torch_models.train(model, x, y, torch_models.shuffled(index[i], workload), workload.lr)
            if personal:
                clients[i] = [p.detach().clone() for p in mine]
                continue
            with torch.no_grad():
                for t, p in zip(total, mine, strict=True):
                    t.add_(p, alpha=workload.examples)
            seen += workload.examples
        if not personal:
            for s, t in zip(server, total, strict=True):
                s.copy_(t / seen)

    def run(rounds):
        for _ in range(rounds):
            one_round()

    run(workload.rounds)
    protocol.serve(run, versions={"torch": torch.__version__}, threads=torch.get_num_threads())
    return None


def check(workload, file):
    """Prints the largest difference of an averaged weight from ours, and the largest change, as
    JSON."""
    found = np.load(file)
    model, (x, y) = torch_models.build(workload), torch_models.tensors(workload)
    before, after = (
        torch_models.from_ours(model, {k[len(part) :]: found[k] for k in found.files if k.startswith(part)})
        for part in ("before/", "after/")
    )
    clients = [found[k] for k in sorted(k for k in found.files if k.startswith("batches/"))]
    total = {k: torch.zeros_like(v) for k, v in before.items()}
    for batches in clients:
        model.load_state_dict(before)
        torch_models.train(model, x, y, [torch.from_numpy(b) for b in batches], workload.lr)
        for k, v in model.state_dict().items():
            total[k] += v
    floating = [k for k, v in before.items() if v.dtype.is_floating_point]
    print(  # noqa: T201
        json.dumps(
            {
                "difference": max(float((total[k] / len(clients) - after[k]).abs().max()) for k in floating),
                "change": max(float((after[k] - before[k]).abs().max()) for k in floating),
            }
        )
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
