"""FedHPL on backbones of one's own: three architectures among five clients, for two cores.

Command:  for spec in "vit64 vit(patch=8,width=64,depth=4,heads=2)" "vit96 vit(patch=8,width=96,depth=4,heads=3)" \
              "resnet10 resnet10(stem='imagenet',width=32)"; do set -- $spec
              python -m methods.main --config=configs/centralized_pretrain.py --workdir=runs/$1 --config.models="(\"$2\",)" \
                  --config.data.source="npz(path='tiny_imagenet64_sample.npz')" --config.data.dir=DIR --config.data.size=32 \
                  --config.data.examples=20000 && fedjax-core export runs/$1 --out=backbones/$1.safetensors; done
          fedjax-core table --table=configs/tables/fedhpl/own.py --workdir=runs/fedhpl_own --set=data.dir=DIR
Expect:   see configs/RESULTS.md.
Variants: small (the default): CIFAR-10 at 32 x 32 pixels, 5 clients with 500 images each, two
          vision transformers and a ResNet pre-trained on another data set, 10 rounds of one epoch;
          smoke: two rounds on digits, random backbones; paper: as small with all 50,000 images.

The table tests whether distillation adds to prompt tuning, as in the paper's Table 3 (0.04 to
0.44 points with different networks, FedHPL against Local). The baselines that exchange logits or projected features have the same
frozen backbones, prompts and heads. The others need features of equal length and train from
scratch, like all baselines of the paper's Table 2.
"""

from configs import fedgh, fedhe, fedmd
from configs.tables.fedhpl import all_methods as fedhpl

FILES = ("vit64", "vit96", "resnet10", "vit96", "vit64")
SPECS = {
    "vit64": "vit(patch=8, width=64, depth=4, heads=2, prompts=3)",
    "vit96": "vit(patch=8, width=96, depth=4, heads=3, prompts=3)",
    "resnet10": "resnet10(stem='imagenet', width=32, frame=2)",
}
MD = {"public": "digits", "method.epochs": 1, "method.public_epochs": 5, "method.private_epochs": 5}
SEEDS = (0, 1, 2)


def frozen(variant: str):
    """Returns settings that train prompts and heads of frozen backbones."""
    if variant == "smoke":
        return {
            "models": ("vit(patch=4, width=8, depth=1, heads=2, prompts=3)", "cnn(widths=(4,), dense=16, frame=1)"),
            "train": "prompts",
        }
    return {
        "models": tuple(SPECS[name] for name in FILES),
        "weights": tuple(f"backbones/{name}.safetensors" for name in FILES),
        "train": "prompts",
    }


def get_table(variant: str = "small"):
    reduced, tuned = "smoke" if variant == "smoke" else "small", frozen(variant)
    scratch = {row.label: row for row in fedhpl.many_networks(reduced)}
    of = lambda label, get_config, **options: fedhpl.Row(
        label, get_config, tuned | {f"method.{name}": value for name, value in options.items()}
    )
    rows = (
        fedhpl.fedhpl("FedHPL", tuned),
        fedhpl.local("Local", tuned),
        fedhpl.fedhpl("FedHPL, averaged", tuned, weighting="uniform"),
        of("FedHE", fedhe.get_config, epochs=1),
        of("FedGH", fedgh.get_config, epochs=1, projection=64),
        fedhpl.Row("FedMD", fedmd.get_config, tuned | MD),
        *(
            fedhpl.Row(f"{name}, from scratch", scratch[name].config, scratch[name].changes)
            for name in ("FedProto", "FedTGP", "FedGen")
        ),
    )
    size = {"small": {"data.size": 32, "data.examples": 2500}, "paper": {"data.size": 32, "data.examples": None}}.get(variant, {})
    columns = tuple(fedhpl.column(fedhpl.CIFAR10, skew, reduced) for skew in ("IID", "Dir", "Non-IID"))
    changes = (
        fedhpl.SHARED | fedhpl.SETTINGS[reduced] | size | ({} if variant == "smoke" else {"rounds": 10, "evaluation.every": 5})
    )
    note = "On backbones of one's own: no number here is of the paper's setting."
    return fedhpl.Table(
        "FedHPL on backbones of one's own",
        rows,
        columns,
        (fedhpl.LAST, fedhpl.BEST),
        SEEDS,
        changes,
        note=note,
        differ=("epochs", "network", "data"),
    )
