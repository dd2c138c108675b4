"""FedAvg of prototypical networks on FC100, 5-way 5-shot: 20 clients, Dirichlet(0.2), 8 per round; evaluated on unseen classes.

Command:  fedjax-core run fedavg_fc100 --workdir=runs/fedavg_fc100
Expect:   small: 80 % of the test queries (75 % before training, 20 % by chance), in seconds; paper:
          not run.
Variants: small (the default) and smoke (seconds): without files: clients train on the digits 0 to
          4, and test episodes are of 5 to 9; paper: FedSKC's setting (its Table I), ResNet-8 with
          the 3x3 stem, SGD at 0.01, 10 local epochs, 200 rounds, with CIFAR-100's archive in
          --config.data.dir, or --config.data.source="fc100(of='tfds:cifar100')".

A local step is one episode, and an epoch has ceil(size / batch) of them. With a batch of the 5 * (5 + 15)
examples of an episode, an epoch sees about as many examples as the client has. The paper specifies
neither backbone nor episodes. Other methods, such as --config.method.name=scaffold, work the same way;
fedskc needs knowledge of features.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    tests = 60 if variant == "smoke" else 600
    config.task = f"episodes(way=5, shot=5, query=15, tests={tests})"
    config.data.source = "unseen(of='digits', classes=(5, 6, 7, 8, 9))"
    config.data.partition = "dirichlet(alpha=0.2)"
    config.models = ("cnn(widths=(16, 32), dense=64)",)
    config.method = dict(name="fedavg", epochs=5, batch=20, weights="samples")
    config.optimizer.lr = 0.05
    config.evaluation.scopes = ("global",)
    if variant == "paper":
        config.data.source = "fc100"
        config.models = ("resnet8",)
        config.method = dict(name="fedavg", epochs=10, batch=100, weights="samples")
        config.optimizer.lr = 0.01
        config.rounds = 200
    return config
