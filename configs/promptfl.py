"""PromptFL on scikit-learn's handwritten digits with a small random CLIP: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/promptfl.py --workdir=runs/promptfl
          With published weights (docs/pages/language-models.md):
          --config.models='("clip(folder=\"models/clip-vit-base-patch16\", prompts=16)",)'
Expect:   see docs/pages/language-models.md. The encoders are random, so this shows that prompts are
          learned, and no accuracy of CLIP's.
Variants: small (the default); smoke (seconds); paper: the released settings on CIFAR-100: CLIP ViT-B/16
          from the folder clip-vit-base-patch16, 16 vectors, 10 rounds of 5 epochs of SGD 0.001 with
          cosine decay and batch 32, all of 10 clients with ten classes of their own. The paper's own
          sets are few-shot subsets of folders of photographs; the script has 20 rounds and 64
          clients.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.models = ("clip(prompts=16)",)
    config.train, config.normalise = "prompts", "clip"
    config.optimizer.update(name="adam", lr=0.01)
    config.method = dict(name="promptfl", epochs=1 if variant == "smoke" else 5, batch=32)
    if variant == "paper":
        config.data.update(source="cifar100", clients=10, partition="pathological(classes_per_client=10)")
        config.models = ("clip(folder='clip-vit-base-patch16', prompts=16)",)
        config.augment = "resized_crop | flip"
        config.optimizer.update(name="sgd", lr=0.001, momentum=0.9, weight_decay=5e-4, anneal="cosine")
        config.cohort.fraction = 1.0
        config.rounds = 10
    return config
