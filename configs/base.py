"""What all configs share. A config is a small change of this one, and says in its docstring what to expect of it.

Sources, partitions and models are named with their arguments: "dirichlet(alpha=0.5)". The command line locks the config, so a
misspelt flag is an error. `None` means: not given, the callee's default.
"""

from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

VARIANTS = ("paper", "small", "smoke")
SMOKE_PAIR = ("mlp(widths=(32,))", "cnn(widths=(4,), dense=32)")  # two architectures, quickly compiled


def as_in_fedskc(config: Any) -> None:
    """FedSKC's protocol for CIFAR-10, into a config with a method: ResNet-8, 20 clients, Dirichlet(0.2), plain SGD."""
    config.data.update(source="cifar10", clients=20, partition="dirichlet(alpha=0.2)")
    config.models = ("resnet8",)
    config.optimizer.lr = 0.01
    config.method.update(epochs=10, batch=64)
    config.cohort.fraction = 0.4
    config.rounds = 200


def as_in_fedpft(config: Any) -> None:
    """FedPFT's protocol for CIFAR-10, into a config: ResNet-8 with the 7x7 stem, 40 clients with 500 + 100 images each and a label
    distribution of their own, all in every round, 1000 rounds, batch 100. Local epochs, 5 in all, are the method's."""
    config.data.update(
        source="cifar10", clients=40, partition="dirichlet_clients(alpha=0.5, train_examples=500, test_examples=100)"
    )
    config.models = ("resnet8(stem='imagenet')",)
    config.optimizer.lr = 0.1
    config.method.update(batch=100)
    config.cohort.fraction = 1.0
    config.evaluation.scopes = ("own",)
    config.rounds = 1000


def as_in_fedhpl(config: Any, stem: str = "imagenet") -> None:
    """FedHPL's protocol of baselines for CIFAR-10, into a config with a method: 5 clients, whose data may overlap, with
    ResNet-18/34/50/34/18 from scratch at 32 px (the paper does not say; its 40 % fit), all in every one of 100 rounds, batches of
    16; each scored on the whole test set. Local epochs, one, are the method's. Its Table 7 counts the 7x7 stem for FedGen and
    FedTGP, the 3x3 one ("cifar") for FedHE; FedMD and FedGH fit that one too."""
    config.data.update(source="cifar10", clients=5, partition="overlapping_dirichlet")
    config.models = tuple(f"resnet{depth}(stem={stem!r})" for depth in (18, 34, 50, 34, 18))
    config.optimizer.update(name="sgd", lr=0.01, momentum=0.9, weight_decay=1e-4)
    config.method.update(batch=16)
    config.cohort.fraction = 1.0
    config.evaluation.scopes = ("global", "all")
    config.rounds = 100


def as_in_fedoa(config: Any) -> None:
    """FedOA's protocol, into a config with a method: LoRA of LLaMA-7B, 6 clients with one data set of FLAN each and 1000 examples,
    reading comprehension left out and tested on, 2 local epochs of AdamW that falls to 0, all clients in every one of 20 rounds."""
    source = "instructions(folder='flan_ood', leave_out='reading_comprehension')"
    config.data.update(source=source, clients=6, partition="by_domain")
    config.models = ("pretrained(folder='llama-7b', dtype='bfloat16', limit=512, long='cut', remat=True)",)
    config.adapter = "lora(rank=8, alpha=16.0, dropout=0.05, targets=('query', 'value'))"
    config.optimizer.update(name="adam", lr=3e-4, clip=1.0, anneal="linear")
    config.method.update(epochs=2, batch=32)
    config.cohort.fraction = 1.0
    config.evaluation.update(scopes=("global", "all"), batch=32)
    config.rounds = 20


def get_config(variant: str = "small") -> Any:
    """Digits on 20 clients; without a method, which each config brings.

    Args:
      variant: "paper" (a published setting), "small" (minutes), "smoke" (seconds, for tests).

    Raises:
      ValueError: another variant.
    """
    if variant not in VARIANTS:
        raise ValueError(f"config variant {variant!r} is not one of {', '.join(VARIANTS)}")
    config: Any = ConfigDict()
    config.seed = 0  # initialisation, sampling, training; data have their own
    config.rounds = 5 if variant == "smoke" else 50  # in all; a longer run goes on from a shorter one
    config.dropout = 0.0  # probability that a sampled client does not come back

    config.data = ConfigDict()
    config.data.source = "digits"  # or "tfds:NAME", "cifar10", "npz(path=...)", "folder(path=...)" ...: fedjax_core/data/sources/
    config.data.dir = placeholder(str)  # where data sets lie; None: $FEDJAX_DATA, else ~/fedjax_data
    config.data.size = placeholder(int)  # images are resized to size x size
    config.data.examples = placeholder(int)  # of training, in all, so many and no more
    # Over which the training rows are divided; None: 20, and with the partition "natural" all that the data have.
    config.data.clients = placeholder(int)
    config.data.partition = "dirichlet(alpha=0.5)"  # small alpha: strong skew; fedjax_core/data/partition/
    config.data.seed = 0  # of the division: methods that are compared have the same clients, whatever the training seed
    config.data.long_tail = placeholder(float)  # largest class over smallest, cut before partitioning
    # Each client's own test rows: "proportional": each class's are dealt in proportion to the clients' training rows; "matched": so
    # many with the labels' distribution of its training rows, which clients may share; "all" of them; "partition": those that the
    # partition brings. None: "partition" where it brings some, else "proportional".
    config.data.test_split = placeholder(str)
    config.data.test_examples = placeholder(int)  # of each client, for "matched"
    config.data.validation = placeholder(object)  # of each client's training rows, a fraction or a number, held back to choose by
    config.data.unseen_clients = placeholder(object)  # a fraction or a number of the clients: they never train, and are scored

    config.task = "classification"  # or "episodes(way=5, shot=5, query=15)": fedjax_core/training/few_shot.py

    config.cohort = ConfigDict()
    config.cohort.fraction = 0.4  # of the clients, which take part in a round
    config.cohort.size = placeholder(int)  # a number of clients, instead of the fraction

    # "fixed" (None): that number, drawn; "poisson": each client by a draw of its own; "cyclic": in turn, none again before its own
    config.cohort.sampling = placeholder(str)

    config.models = ("mlp",)  # several: client i gets model i mod their number; of images also with resize=, frame=: fedjax_core/nn
    config.weights = placeholder(object)  # a file that networks begin from, or a tuple with one (or None) for each model
    config.train = "all"  # or "prompts" (and head), "head": the rest of a network stays as it began, in evaluation mode
    config.adapter = placeholder(str)  # "lora(rank=8)": what is trained of a frozen network, beside `train`'s entries if not "all"
    # Inputs, by mean and deviation: "data" (the training set's), "robust" (its median and quartiles, wild rows cut), neither with
    # privacy; of pixels in [0, 1] "imagenet", "half" (0.5), "unit" (as they are); or those of a file of weights.
    config.normalise = "data"
    config.public = placeholder(str)  # a labelled set that all hold, such as "svhn(examples=5000)"; networks get outputs for it
    config.statistics = "average"  # of batch normalisation: "average", "local", "freeze"
    config.augment = placeholder(str)  # of training images: "crop(padding=4) | flip"; fedjax_core/training/augment/pipeline.py
    # Of targets; None: the one that fits, of classes cross-entropy; "smoothed", "focal", "sigmoid_cross_entropy", "squared_error",
    # "absolute_error", or yours, "my_file.py:name": (logits, y, mask) -> the mean.
    config.loss = placeholder(str)
    config.optimizer = ConfigDict()
    config.optimizer.name = "sgd"  # or "adam"
    config.optimizer.lr = 0.1  # learning rate of local training
    config.optimizer.momentum = placeholder(float)  # of SGD
    config.optimizer.nesterov = placeholder(bool)  # whether it is Nesterov's
    config.optimizer.weight_decay = placeholder(float)  # times the weights, added to the gradient
    config.optimizer.clip = placeholder(float)  # largest norm of a gradient
    config.optimizer.decay = placeholder(float)  # learning rate of round r: lr * decay ** r
    config.optimizer.anneal = placeholder(str)  # within each local training: "linear", "cosine", to 0

    config.evaluation = ConfigDict()
    config.evaluation.every = 5  # rounds; the last one is always scored
    config.evaluation.scopes = ("global", "own")  # also "post_local", "all", "unseen": fedjax_core/engine/federation.py
    config.evaluation.batch = placeholder(int)  # rows that are scored at once; None: by what clients have and the device
    config.evaluation.clients = placeholder(int)  # score at most so many
    config.evaluation.newcomer_updates = placeholder(int)  # local updates that make an unseen client's models; None: one
    config.evaluation.last_k = 10  # mean over the last k evaluations
    # Scores beside accuracy and loss: "macro_f1", "balanced_accuracy", "auroc", "expected_calibration_error", or yours, such as
    # ("my_file.py:top5",): (outputs, x, y, mask [B]) -> (sum, weight), or an object with `finalize`: fedjax_core/training/scores.py
    config.evaluation.scores = placeholder(tuple)
    config.evaluation.select = placeholder(str)  # the best round by a score on validation rows, "validation/global/accuracy"
    config.evaluation.patience = placeholder(int)  # stop after so many evaluations without a better one
    config.evaluation.until = placeholder(str)  # stop when a score is there, "test/global/accuracy >= 0.97"
    config.evaluation.targets = (0.5, 0.8, 0.9)  # rounds until these accuracies are reached

    config.plan = ConfigDict()
    config.plan.chunk = placeholder(int)  # clients at once on a device; None: one on CPUs, else all of a round, or as many as fit
    config.plan.devices = placeholder(int)  # over which the clients are spread; None: all, but no more than a round has clients
    config.plan.model = placeholder(int)  # devices that hold a network together, each a part of it; None: each holds all
    config.plan.lanes = placeholder(int)  # seeds of one config that train at once, in one program (--seeds, tables); None: one
    config.plan.data = placeholder(str)  # rows of data: "device", "host", "disk"; None: where they fit, which is said
    config.plan.hold = "device"  # client states: "device", or "host", "disk" for large populations

    config.adversary = ConfigDict()
    # What attackers do: "sign_flip", "alie", "label_flip", "backdoor(target=0) | scaled": fedjax_core/uplink/attacks.py
    config.adversary.attack = placeholder(str)
    config.adversary.fraction = placeholder(float)  # of the clients, the same ones in all rounds

    config.compression = ConfigDict()
    config.compression.uplink = placeholder(str)  # "quantise(bits=4)", "top_k(fraction=0.01)": fedjax_core/uplink/compression.py
    config.compression.downlink = placeholder(str)  # "float16" or "bfloat16"

    config.aggregation = ConfigDict()
    # Instead of the mean of deltas, or of class means: "median", "mixing | krum(attackers=0.2)":
    # fedjax_core/uplink/robust_aggregation.py
    config.aggregation.rule = placeholder(str)
    config.aggregation.not_finite = placeholder(
        str
    )  # who sends NaN: "leave_out", "end" the run; None: with a rule or privacy left out

    config.privacy = ConfigDict()
    # Differential privacy of clients: "gaussian", "adaptive(quantile=0.5)" by the server, "local_gaussian", "local_laplace" by
    # each client: fedjax_core/uplink/dp_mechanisms.py. By noise that is correlated over rounds, for cohorts that come in turn:
    # "tree", "banded(bands=4)", "blt(buffers=3)": fedjax_core/privacy/matrix_factorization.py. Needs clip, delta, and noise or
    # epsilon.
    config.privacy.mechanism = placeholder(str)
    config.privacy.clip = placeholder(float)  # norm of a client's delta; of "adaptive" the first one
    config.privacy.noise = placeholder(float)  # multiplier: deviation of the noise over the clip (times the sensitivity)
    config.privacy.epsilon = placeholder(float)  # in its place: the noise that gives this after all rounds
    config.privacy.delta = placeholder(float)  # of (epsilon, delta)
    # Clients a round of the deployment: noise and epsilon are of these; None: as simulated.
    config.privacy.cohort = placeholder(int)
    config.privacy.population = placeholder(int)  # and its clients in all, which needs its cohort; None: as simulated
    # Where cohorts come in turn, what is accounted for: rounds until a client may come again; None: what the cohorts hold. More
    # than they hold is refused.
    config.privacy.min_separation = placeholder(int)
    config.privacy.participations = placeholder(int)  # likewise the rounds that a client takes part in at most
    config.privacy.accountant = placeholder(str)  # "pld", "rdp"; None: the tighter that has the sampling

    config.callbacks = ()  # told what happens, may ask to stop: "wandb(project='x')", "my.module:Name(option=1)"
    config.profile = False  # True: a jax.profiler trace of one round, in profile/ of the work directory

    config.checkpoint = ConfigDict()
    config.checkpoint.seconds = 30.0  # at least so far apart; there is always one at the end
    config.checkpoint.keep = 3  # the last so many; with 1 damage to it leaves nothing
    return config
