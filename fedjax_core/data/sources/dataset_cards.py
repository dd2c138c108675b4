"""Licence, place and citation of published sets, which users must know before they use them.

Licences are those that the owners or, where they state none, the distributors name. Sizes are in
`dataset_sizes.py`.
"""

from typing import NamedTuple


class Card(NamedTuple):
    """Facts about a published set.

    Attributes:
      licence: in words; whoever uses the data checks it there.
      where: the address of the files, or what they come with.
      citation: the publication of the data.
    """

    licence: str
    where: str
    citation: str

    def describe(self) -> str:
        """Returns the facts as text, a line each."""
        return f"Licence: {self.licence}.\nFrom: {self.where}\nCite: {self.citation}"


KRIZHEVSKY = "Krizhevsky. Learning Multiple Layers of Features from Tiny Images. 2009."
EMNIST = "Cohen, Afshar, Tapson, van Schaik. EMNIST: an extension of MNIST to handwritten letters. 2017. https://arxiv.org/abs/1702.05373"
LEAF = "Caldas et al. LEAF: A Benchmark for Federated Settings. 2018. https://arxiv.org/abs/1812.01097"
ADAPTIVE = "Reddi et al. Adaptive Federated Optimization. ICLR 2021. https://arxiv.org/abs/2003.00295"
USERS = (
    "Hsu, Qi, Brown. Federated Visual Classification with Real-World Data Distribution. ECCV 2020. https://arxiv.org/abs/2003.08082"
)
KRIZ = "https://www.cs.toronto.edu/~kriz/"
TFF = "https://storage.googleapis.com/tff-datasets-public/"
LISTS = "http://storage.googleapis.com/gresearch/federated-vision-datasets/"
OWNERS = "of each image its owner's; verify it for each image"
NONE = "none stated by its authors"
NIST = "made from NIST Special Database 19, whose terms are at https://www.nist.gov/open/license"
DERIVED = "derived from LEAF, whose repository is under the BSD 2-Clause licence"
# by the name of the source
CARDS = {
    "digits": Card(
        "CC BY 4.0 (https://archive.ics.uci.edu/dataset/80)",
        "comes with scikit-learn",
        "Alpaydin, Kaynak. Optical Recognition of Handwritten Digits. UCI Machine Learning Repository, 1998.",
    ),
    "diabetes": Card(
        NONE,
        "comes with scikit-learn",
        "Efron, Hastie, Johnstone, Tibshirani. Least angle regression. Annals of Statistics 32(2), 2004.",
    ),
    "cifar10": Card(NONE, f"{KRIZ}cifar-10-binary.tar.gz", KRIZHEVSKY),
    "cifar100": Card(NONE, f"{KRIZ}cifar-100-binary.tar.gz", KRIZHEVSKY),
    "fc100": Card(
        f"as of CIFAR-100: {NONE}",
        "made from CIFAR-100",
        "Oreshkin, Rodriguez Lopez, Lacoste. TADAM: Task dependent adaptive metric for improved few-shot learning. "
        "NeurIPS 2018. https://arxiv.org/abs/1805.10123",
    ),
    "mnist": Card(
        "CC BY-SA 3.0, as Keras's documentation says",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "LeCun, Bottou, Bengio, Haffner. Gradient-Based Learning Applied to Document Recognition. Proceedings of the IEEE, 1998.",
    ),
    "emnist": Card(f"{NONE}; {NIST}", "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", EMNIST),
    "femnist": Card(f"by its distributor none stated; {DERIVED}; {NIST}", TFF, f"{EMNIST} {LEAF}"),
    "shakespeare": Card(f"of the plays none (public domain); by its distributor none stated; {DERIVED}", TFF, LEAF),
    "stackoverflow": Card("CC BY-SA 3.0", TFF, ADAPTIVE),
    "flair": Card(
        f"of the annotations CC BY-NC 4.0; {OWNERS}",
        "https://github.com/apple/ml-flair",
        "Song, Granqvist, Talwar. FLAIR: Federated Learning Annotated Image Repository. NeurIPS 2022. https://arxiv.org/abs/2207.08869",
    ),
    "landmarks": Card(
        f"of Google Landmarks v2's annotations CC BY 4.0; {OWNERS}",
        f"{LISTS}landmarks-user-160k.zip and https://github.com/cvdfoundation/google-landmark",
        USERS,
    ),
    "inaturalist": Card(
        "non-commercial research and education only (iNaturalist 2017)",
        f"{LISTS}inaturalist-user-120k.zip and https://github.com/visipedia/inat_comp/tree/master/2017",
        USERS,
    ),
    "svhn": Card(
        "non-commercial use only",
        "http://ufldl.stanford.edu/housenumbers/",
        "Netzer, Wang, Coates, Bissacco, Wu, Ng. Reading Digits in Natural Images with Unsupervised Feature Learning. "
        "NIPS workshop, 2011.",
    ),
}
