"""HierFAVG on scikit-learn's handwritten digits: 20 clients of 4 edges, Dirichlet(0.5), 8 per round.

Command:  fedjax-core run hierfavg --workdir=runs/hierfavg
Expect:   see configs/RESULTS.md.
Variants: small (the default), the cloud in every second round; smoke (seconds); paper: its authors'
          for MNIST: 50 clients with two classes each, 5 edges, a CNN with 21,840 parameters, 60
          local steps of batch 20 (one epoch), SGD 0.01 with decay 0.995, 100 rounds of the cloud,
          in every second round (their command: in every round), all clients in every round; without
          their dropout of channels.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="hierfavg", edges=4, cloud_period=2, epochs=5, batch=32)
    if variant == "paper":
        config.data.update(source="mnist", clients=50, partition="shards(shards_per_client=2)")
        config.models = ("cnn(widths=(10, 20), dense=50, kernel=5, pool='each', head_dropout=0.5)",)
        config.optimizer.update(lr=0.01, decay=0.995)
        config.method.update(edges=5, epochs=1, batch=20)
        config.cohort.fraction = 1.0
        config.rounds = 200
    return config
