"""HeteroFL on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round, three widths.

Command:  python -m methods.main --config=configs/heterofl.py --workdir=runs/heterofl
Expect:   see configs/RESULTS.md.
Variants: small (the default), MLPs of two layers of 200, 100 and 50, gradients clipped at norm 1;
          smoke (seconds); paper: its authors' for MNIST: 100 clients with two classes
          each, 10 per round, a CNN with 64, 128, 256 and 512 channels (here with a max-pool and a
          dense layer more in place of the mean over the image, and without normalization) and its
          half, quarter, eighth and sixteenth, 5 local epochs of batch 10, SGD 0.01 with momentum
          0.9 and weight decay 0.0005, gradients clipped at norm 1, 400 rounds; there the rate falls
          to a tenth after 200, and clients draw one of the five widths anew in each round.
"""

from configs import base

WIDTHS = ("mlp(widths=(200, 200))", "mlp(widths=(100, 100))", "mlp(widths=(50, 50))")


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="heterofl", epochs=5, batch=32)
    config.models = WIDTHS
    config.optimizer.clip = 1.0
    if variant == "paper":
        config.data.update(source="mnist", clients=100, partition="pathological(classes_per_client=2, equal_volume=False)")
        widths = [tuple(n // part for n in (64, 128, 256, 512)) for part in (1, 2, 4, 8, 16)]
        config.models = tuple(f"cnn(widths={width}, dense={width[-1]}, padding='SAME', pool='each')" for width in widths)
        config.optimizer.update(lr=0.01, momentum=0.9, weight_decay=5e-4)
        config.method.update(batch=10)
        config.cohort.fraction = 0.1
        config.rounds = 400
    return config
