"""Draws the figure of docs/pages/audit.md, digits beside what the server reads from uplinks, and prints its table.

python -m docs.inversion_figure [FIGURE.png]     a few minutes of one CPU
"""

import sys
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from configs import fedavg
from fedjax_core import audit, experiment
from fedjax_core.reporting.plots import style

LOCAL = {"method.weights": "uniform", "privacy.mechanism": "local_gaussian", "privacy.clip": 1.0, "privacy.delta": 1e-5}
EXAMPLE = {"privacy.level": "example", "privacy.mechanism": "gaussian", "privacy.clip": 1.0, "privacy.delta": 1e-5}
TOP = "compression.uplink"
VARIANTS: dict[str, tuple[str, int, dict[str, Any]]] = {  # of the table: (of the figure, examples, changes of the config)
    "one example, one step": ("one step", 1, {}),
    "gradient clipped to the norm 0.01": ("clip 0.01", 1, {"optimizer.clip": 0.01}),
    "quantised to 4 bits": ("4 bits", 1, {TOP: "quantise(bits=4)"}),
    "10 % of the entries (`top_k`)": ("top 10 %", 1, {TOP: "top_k(fraction=0.1)"}),
    "1 % of the entries": ("top 1 %", 1, {TOP: "top_k(fraction=0.01)"}),
    "5 local steps": ("5 steps", 1, {"method.epochs": 5}),
    "4 examples at once": ("4 at once", 4, {}),
    "16 examples at once": ("16 at once", 16, {}),
    "`local_gaussian`, clip 1, noise 0.01": ("noise 0.01", 1, LOCAL | {"privacy.noise": 0.01, "privacy.accountant": "rdp"}),
    "`local_gaussian`, clip 1, noise 0.1": ("noise 0.1", 1, LOCAL | {"privacy.noise": 0.1, "privacy.accountant": "rdp"}),
    'DP-SGD (`privacy.level="example"`), clip 1, noise 1': ("DP-SGD", 1, EXAMPLE | {"privacy.noise": 1.0}),
}
ATTACK = audit.UplinkAttack("cosine", iterations=600, variation=1e-5)


def invert(examples: int, changes: dict[str, Any]) -> tuple[np.ndarray, audit.Inversion]:
    """Returns the originals of client 0, and the attack on its first uplink."""
    config = fedavg.get_config("smoke")
    config.normalise, config.optimizer.momentum = "unit", None
    config.method.update(epochs=1, batch=examples)
    with config.unlocked():
        config.update_from_flattened_dict(changes)
    simulator = experiment.build(config)
    steps, lr = config.method.epochs, config.optimizer.lr
    observed = audit.observe_uplink(simulator, simulator.init(0), 0, examples, steps=steps, lr=lr)
    return np.asarray(observed.examples.x), audit.invert_uplink(simulator.spec.bound_groups[0].task.model, observed, ATTACK)


def draw(columns: dict[str, tuple[np.ndarray, audit.Inversion]], file: str) -> None:
    """Draws for each variant the first original above its reconstruction."""
    with rc_context(style.STYLE):
        figure = Figure((style.PAGE, 1.7), layout="constrained")
        axes = figure.subplots(2, len(columns))
        for column, (label, (originals, result)) in zip(axes.T, columns.items(), strict=True):
            for axis, image in zip(column, (originals[0], result.images[0]), strict=True):
                axis.imshow(image[..., 0], cmap="gray", vmin=0, vmax=1, interpolation="nearest")
                axis.axis("off")
            column[0].set_title(label, fontsize=6)
            column[1].set_title(f"{result.psnr[0]:.0f} dB", fontsize=6)
        style.write_figure(figure, file)


def main(file: str) -> None:
    """Attacks all variants, prints the table and draws the figure."""
    columns = {}
    print("| what the client sends | PSNR | SSIM |\n|---|--:|--:|")  # noqa: T201
    for name, (label, examples, changes) in VARIANTS.items():
        _, result = columns[label] = invert(examples, changes)
        print(f"| {name} | {np.mean(result.psnr):.1f} | {np.mean(result.ssim):.2f} |", flush=True)  # noqa: T201
    draw(columns, file)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/pages/images/inversion.png")
