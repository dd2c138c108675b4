"""FedTPG on scikit-learn's handwritten digits with a small random CLIP: 4 clients with two classes each, a fifth unseen.

Command:  python -m methods.main --config=configs/fedtpg.py --workdir=runs/fedtpg
          With published weights (docs/pages/language-models.md):
          --config.models='("clip(folder=\"models/clip-vit-base-patch16\", prompts=4, generated=True)",)'
Expect:   see docs/pages/language-models.md. The encoders are random: names say nothing about images,
          so unseen classes are predicted by chance.
Variants: small (the default); smoke (seconds); paper: the paper's network and training on CIFAR-100:
          CLIP ViT-B/16 from the folder clip-vit-base-patch16, 4 vectors, 500 rounds of one epoch of SGD
          0.003 with momentum 0.9, weight decay 1e-5 and batch 200. 10 classes per client, 5 clients that
          train and 5 unseen ones with the other 50 classes. The paper has nine sets of photographs with
          8 examples per class, 20 classes per client, so that an epoch is one step, and cosine decay over
          the rounds.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.data.update(clients=5, partition="pathological(classes_per_client=2)", unseen_clients=1)
    config.models = ("clip(prompts=4, generated=True)",)
    config.train, config.normalise = "prompts", "clip"
    config.optimizer.update(name="adam", lr=3e-3)
    config.method = dict(name="fedtpg", epochs=1 if variant == "smoke" else 5, batch=32)
    config.evaluation.scopes = ("global", "own", "unseen")
    if variant == "paper":
        config.data.update(source="cifar100", clients=10, partition="pathological(classes_per_client=10)", unseen_clients=0.5)
        config.models = ("clip(folder='clip-vit-base-patch16', prompts=4, generated=True)",)
        config.optimizer.update(name="sgd", lr=0.003, momentum=0.9, weight_decay=1e-5)
        config.method.update(epochs=1, batch=200)
        config.cohort.fraction = 1.0
        config.rounds = 500
    return config
