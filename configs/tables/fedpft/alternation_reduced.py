"""FedPFT: what gives its gain, on ten clients with small images; see `alternation.py`.

Command:  fedjax-core table fedpft/alternation_reduced --workdir=runs/fedpft_alternation_reduced --set=data.dir=DIR
Expect:   see configs/RESULTS.md.
Variants: small (the default): CIFAR-10 at 16 x 16 pixels, 10 clients with 200 + 100 images each, a
          ResNet-8 with a quarter of the channels, 150 rounds (FedPFT+Con 400), five seeds; paper:
          as in `alternation.py`; smoke: two rounds on digits.
"""

from configs.tables.base import Table
from configs.tables.fedpft import alternation


def get_table(variant: str = "small") -> Table:
    return alternation.table(variant, variant, 150 if variant == "small" else None, seeds=(0, 1, 2, 3, 4))
