"""SCAFFOLD on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/scaffold.py --workdir=runs/scaffold
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: Karimireddy et al. 2020's EMNIST setting
          (their section 7.2): 100 clients, 20 a round, plain SGD, a two-layer fully connected
          network, 5 local epochs of 0.2 of a client's data per step; their similarity-sorted split
          is cut into shards (needs EMNIST's files). Two shards, 200 units and the balanced split are
          ours.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="scaffold", epochs=5, batch=32, server_lr=1.0)
    if variant == "paper":
        config.data.update(source="emnist(split='balanced')", clients=100, partition="shards(shards_per_client=2)")
        config.models = ("mlp(widths=(200,))",)
        config.cohort.fraction = 0.2
        config.optimizer.lr = 0.05
        config.method = dict(name="scaffold", epochs=5, batch=226, server_lr=1.0)  # 1,128 examples a client
        config.rounds = 1000
    return config
