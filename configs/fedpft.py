"""FedPFT on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round; with a contrast FedPFT+Con.

Command:  fedjax-core run fedpft --workdir=runs/fedpft
          fedjax-core run fedpft --workdir=runs/fedpft_con --config.method.contrast.on=True
              --config.method.transform_rate=0.1
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: CIFAR-10, 40 clients with 500 + 100 images
          and one label distribution each, Dirichlet(0.5), ResNet-8 with the 7x7 stem, 4 + 1 local
          epochs of batches of 100, SGD 0.1 (0.05 for the transformation), 1000 rounds.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(
        name="fedpft",
        prompts=10,
        prompt_scale=1.0,
        transform_epochs=4,
        model_epochs=1,
        batch=32,
        transform_rate=0.5,
        alternate=True,
        classifier="shared",
        statistics="evaluate",
        heads=1,
        residual=True,
        weights="samples",
        contrast=dict(
            on=False,
            prompts=20,
            queue=256,
            size=128,
            momentum=0.999,
            temperature=0.07,
            augment="resized_crop(scale=(0.2, 1.0)) | colour_jitter",  # digits are gray and not symmetric
            momentum_transform=False,
            first=0,
        ),
    )
    config.evaluation.scopes = ("own",)
    if variant == "paper":
        base.as_in_fedpft(config)
        colours = "resized_crop(scale=(0.2, 1.0)) | greyscale(probability=0.2) | colour_jitter | flip"
        config.method.update(contrast=dict(queue=4096, augment=colours))
    return config
