"""LG-FedAvg on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/lg_fedavg.py --workdir=runs/lg_fedavg
Expect:   see configs/RESULTS.md.
Variants: small (the default), the classifier is shared; smoke (seconds); paper: its authors' for
          MNIST: 100 clients with two shards each, an MLP of five layers of which the last three are
          shared, 10 clients a round, one epoch, batch 10, SGD 0.05 with momentum 0.5, 200 rounds;
          from the common initialization, not from their model of FedAvg. Their network ends in a
          softmax before the loss, which makes gradients smaller.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    shared: tuple[str, ...] = ("dense3", "dense4", "head") if variant == "paper" else ("head",)
    config.method = dict(name="lg_fedavg", shared=shared, epochs=5, batch=32)
    if variant == "paper":
        config.data.update(source="mnist", clients=100, partition="shards(shards_per_client=2)")
        config.models = ("mlp(widths=(512, 256, 256, 128), init='torch')",)
        config.method.update(epochs=1, batch=10)
        config.optimizer.update(lr=0.05, momentum=0.5)
        config.cohort.fraction = 0.1
        config.rounds = 200
    return config
