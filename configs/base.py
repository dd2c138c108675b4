"""Base of all configs. A config changes a few fields, and its docstring says what results to expect.

Sources, partitions and models are named with their options: "dirichlet(alpha=0.5)". The command line
locks the config, so a misspelled field is an error. `None` selects the default.
"""

from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

VARIANTS = ("paper", "small", "smoke")
SMOKE_PAIR = ("mlp(widths=(32,))", "cnn(widths=(4,), dense=32)")  # two architectures that compile fast


def as_in_fedskc(config: Any) -> None:
    """Sets FedSKC's protocol for CIFAR-10: ResNet-8, 20 clients, Dirichlet(0.2), plain SGD."""
    config.data.update(source="cifar10", clients=20, partition="dirichlet(alpha=0.2)")
    config.models = ("resnet8",)
    config.optimizer.lr = 0.01
    config.method.update(epochs=10, batch=64)
    config.cohort.fraction = 0.4
    config.rounds = 200


def as_in_fl_simulator(config: Any) -> None:
    """Sets the protocol of the repository woodenchild95/FL-Simulator for CIFAR-10, which compares ten methods.

    A ResNet-18 with the 7x7 stem and group normalization in two groups; flips and crops (theirs crop every
    second image); 100 clients, Dirichlet(0.6), 10 per round; 5 local epochs of batch 50; SGD at 0.1 with decay
    0.998, weight decay 0.001 and gradients clipped at norm 10; 1000 rounds.
    """
    config.data.update(source="cifar10", clients=100, partition="dirichlet(alpha=0.6)")
    config.models = ("resnet18(stem='imagenet', norm='group', groups=2)",)
    config.augment = "crop(padding=4) | flip"
    config.optimizer.update(lr=0.1, decay=0.998, weight_decay=1e-3, clip=10.0)
    config.method.update(epochs=5, batch=50)
    config.cohort.fraction = 0.1
    config.rounds = 1000


def as_in_fedpft(config: Any) -> None:
    """Sets FedPFT's protocol for CIFAR-10.

    ResNet-8 with the 7x7 stem; 40 clients with 500 + 100 images each and their own label distributions,
    all in every one of 1000 rounds; batches of 100. The 5 local epochs are options of the method.
    """
    config.data.update(
        source="cifar10", clients=40, partition="dirichlet_clients(alpha=0.5, train_examples=500, test_examples=100)"
    )
    config.models = ("resnet8(stem='imagenet')",)
    config.optimizer.lr = 0.1
    config.method.update(batch=100)
    config.cohort.fraction = 1.0
    config.evaluation.scopes = ("own",)
    config.rounds = 1000


def as_in_pfllib(config: Any) -> None:
    """Sets the protocol that PFLlib and its authors' methods share, but for data and rounds.

    20 clients, all in every round; training and test set merged, Dirichlet(0.1), self-balancing, with
    at least 40 examples each, split 75 to 25 by client; pixels in [-1, 1]; its CNN, begun as in PyTorch;
    one local epoch of full batches of 10, SGD at 0.005; evaluation every round.
    """
    config.data.update(clients=20, partition="dirichlet(alpha=0.1, min_size=40, self_balancing=True)", test_split="merged")
    config.normalise = "half"
    config.models = ("cnn(widths=(32, 64), dense=512, kernel=5, pool='each', init='torch')",)
    config.optimizer.lr = 0.005
    config.method.update(epochs=1, batch=10)
    config.drop_last = True
    config.cohort.fraction = 1.0
    config.evaluation.every = 1


def as_in_fedhpl(config: Any, stem: str = "imagenet") -> None:
    """Sets FedHPL's protocol of baselines for CIFAR-10.

    5 clients, whose data may overlap, with ResNet-18/34/50/34/18 from scratch at 32 px (the paper does not
    give the size; its 40 % accuracy fits), all in every one of 100 rounds; batches of 16; each client is
    evaluated on the whole test set. The single local epoch is an option of the method. Table 7 of the
    paper counts the 7x7 stem for FedGen and FedTGP, and the 3x3 stem ("cifar") for FedHE, which also fits
    FedMD and FedGH.
    """
    config.data.update(source="cifar10", clients=5, partition="overlapping_dirichlet")
    config.models = tuple(f"resnet{depth}(stem={stem!r})" for depth in (18, 34, 50, 34, 18))
    config.optimizer.update(name="sgd", lr=0.01, momentum=0.9, weight_decay=1e-4)
    config.method.update(batch=16)
    config.cohort.fraction = 1.0
    config.evaluation.scopes = ("global", "all")
    config.rounds = 100


def as_in_fedoa(config: Any) -> None:
    """Sets FedOA's protocol.

    LoRA of LLaMA-7B; 6 clients, each with 1000 examples of one FLAN data set; reading comprehension is left
    out for testing; 2 local epochs of AdamW with linear decay to 0; all clients in every one of 20 rounds.
    """
    source = "instructions(folder='flan_ood', leave_out='reading_comprehension')"
    config.data.update(source=source, clients=6, partition="by_domain")
    config.models = ("pretrained(folder='llama-7b', dtype='bfloat16', limit=512, long='cut', remat=True)",)
    config.adapter = "lora(rank=8, alpha=16.0, dropout=0.05, targets=('query', 'value'))"
    config.optimizer.update(name="adam", lr=3e-4, clip=1.0, anneal="linear")
    config.method.update(epochs=2, batch=32)
    config.cohort.fraction = 1.0
    config.evaluation.update(scopes=("global", "all"), batch=32)
    config.rounds = 20


def adapt_transformer(config: Any, rank: int = 8) -> None:
    """Sets LoRA of a small vision transformer with random weights, and its classifier, for digits."""
    config.models = ("vit(patch=4, width=64, depth=1, heads=2)",)
    config.adapter = f"lora(rank={rank}, alpha={2.0 * rank}, dropout=0.0, targets=('query', 'value', 'mlp1', 'mlp2'))"
    config.train = "head"
    config.optimizer.update(name="adam", lr=1e-2)


def get_config(variant: str = "small") -> Any:
    """Returns the base config: digits on 20 clients, without a method, which each config adds.

    Args:
      variant: "paper" (a published setting), "small" (minutes), "smoke" (seconds, for tests).

    Raises:
      ValueError: another variant.
    """
    if variant not in VARIANTS:
        raise ValueError(f"config variant {variant!r} is not one of {', '.join(VARIANTS)}")
    config: Any = ConfigDict()
    config.seed = 0  # seed of initialization, client sampling and training; data have their own
    # Rounds in total; resuming with more continues a shorter run
    config.rounds = 5 if variant == "smoke" else 50
    config.dropout = 0.0  # probability that a sampled client drops out
    config.drop_last = placeholder(bool)  # whether local training drops a minibatch that is not full

    config.data = ConfigDict()
    # Also "tfds:NAME", "cifar10", "npz(path=...)", "folder(path=...)" ...:
    # fedjax_core/data/sources/
    config.data.source = "digits"
    # Folder of data sets; None: $FEDJAX_DATA, else ~/fedjax_data
    config.data.dir = placeholder(str)
    config.data.size = placeholder(int)  # images are resized to size x size
    # Maximum number of training examples, all clients together; None: all
    config.data.examples = placeholder(int)
    # Number of clients; None: 20, or with the partition "natural" all of the data's
    config.data.clients = placeholder(int)
    # Small alpha: strong label skew; fedjax_core/data/partition/
    config.data.partition = "dirichlet(alpha=0.5)"
    # Seed of the partition, independent of `seed`, so that compared methods have the same clients
    config.data.seed = 0
    # Size of the largest class over that of the smallest, by subsampling before the partition
    config.data.long_tail = placeholder(float)
    # Each client's own test examples. "proportional": of each class in proportion to the clients'
    # training examples; "matched": a fixed number with the label distribution of its training
    # examples, which clients may share; "all" test examples; "partition": those of the partition;
    # "merged": a random quarter of the client's examples, of training and test set together.
    # None: "partition" if it has test examples, else "proportional".
    config.data.test_split = placeholder(str)
    # Test examples of each client, with test_split="matched"
    config.data.test_examples = placeholder(int)
    # Fraction or number of each client's training examples that are held out for validation
    config.data.validation = placeholder(object)
    # Fraction or number of clients that never train and are only evaluated
    config.data.unseen_clients = placeholder(object)

    # Or "episodes(way=5, shot=5, query=15)": fedjax_core/training/few_shot.py
    config.task = "classification"

    config.cohort = ConfigDict()
    config.cohort.fraction = 0.4  # fraction of the clients that take part in a round
    config.cohort.size = placeholder(int)  # number of clients in a round, instead of the fraction
    # "fixed" (None): that number, uniformly; "poisson": each client independently; "cyclic": in
    # turn, so that a client returns only after all others; "size", "available",
    # "power_of_choice(candidates=20)", "oort": docs/pages/time.md
    config.cohort.sampling = placeholder(str)

    # Networks; of several, client i gets network i modulo their number. Those of images also take
    # resize= and frame=: fedjax_core/nn/
    config.models = ("mlp",)
    # File of initial weights, or a tuple with one file (or None) for each model
    config.weights = placeholder(object)
    # "prompts" (and the head) or "head": the rest of a network is frozen, in evaluation mode
    config.train = "all"
    # "lora(rank=8)": trained instead of the network; `train` may name entries that are trained too
    config.adapter = placeholder(str)
    # Normalization of inputs. "data": mean and deviation of the training set; "robust": its median
    # and quartiles, outliers clipped; neither with privacy. Of pixels in [0, 1]: "imagenet", "half"
    # (0.5), "clip", "unit" (none); or the statistics in a file of weights.
    config.normalise = "data"
    # Labeled set that all clients share, such as "svhn(examples=5000)"; adds outputs for its
    # classes
    config.public = placeholder(str)
    config.statistics = "average"  # batch statistics: "average", "local" to the client, or "freeze"
    # Augmentation of training images, "crop(padding=4) | flip":
    # fedjax_core/training/augment/pipeline.py
    config.augment = placeholder(str)
    # Loss of outputs and targets. None: the default of the targets, cross-entropy for classes. Also
    # "smoothed", "focal", "sigmoid_cross_entropy", "squared_error", "absolute_error", or your own,
    # "my_file.py:name": (logits, y, mask) -> mean.
    config.loss = placeholder(str)
    # Terms of features that join the loss of any method: ("decorrelation(coefficient=0.1)",) is
    # FedDecorr; or your own, "my_file.py:name": (features [B, D], mask [B]) -> number
    config.regularizers = ()
    config.optimizer = ConfigDict()
    config.optimizer.name = "sgd"  # or "adam"
    config.optimizer.lr = 0.1  # learning rate of local training
    config.optimizer.momentum = placeholder(float)  # momentum of SGD
    config.optimizer.nesterov = placeholder(bool)  # whether to use Nesterov's momentum
    # The weights times this are added to the gradient; with Adam to its step, before the rate (AdamW)
    config.optimizer.weight_decay = placeholder(float)
    config.optimizer.clip = placeholder(float)  # maximum norm of a gradient
    config.optimizer.decay = placeholder(float)  # the learning rate of round r = 1, 2, ... is lr * decay ** (r - 1)
    # Decay to 0 within each local training: "linear" or "cosine"
    config.optimizer.anneal = placeholder(str)
    # Sharpness-aware steps, with two gradients a step: "sam(rho=0.05)" or "asam(rho=0.5, eta=0.01)"
    config.optimizer.sharpness = placeholder(str)

    config.evaluation = ConfigDict()
    config.evaluation.every = 5  # rounds between evaluations; the last round is always evaluated
    # Also "post_local", "all", "unseen": fedjax_core/engine/simulation_spec.py
    config.evaluation.scopes = ("global", "own")
    # Examples at once; None: chosen by the clients' sizes and the device
    config.evaluation.batch = placeholder(int)
    config.evaluation.clients = placeholder(int)  # maximum number of clients to evaluate; None: all
    # Local updates from which an unseen client gets its models; None: one
    config.evaluation.newcomer_updates = placeholder(int)
    config.evaluation.last_k = 10  # the mean over the last k evaluations is reported
    # Further metrics: "macro_f1", "balanced_accuracy", "auroc", "expected_calibration_error", or
    # your own, such as ("my_file.py:top5",): (outputs, x, y, mask [B]) -> (sum, weight), or an
    # object with `finalize`: fedjax_core/training/scores.py
    config.evaluation.scores = placeholder(tuple)
    # Metric of validation examples that selects the best round, "validation/global/accuracy"
    config.evaluation.select = placeholder(str)
    # Stop after this many evaluations without improvement
    config.evaluation.patience = placeholder(int)
    # Stop when a metric is reached, "test/global/accuracy >= 0.97"
    config.evaluation.until = placeholder(str)
    config.evaluation.targets = (0.5, 0.8, 0.9)  # the rounds to these accuracies are reported

    config.plan = ConfigDict()
    # Clients trained at once on a device; None: one on CPUs, else the cohort, or as many as fit
    config.plan.chunk = placeholder(int)
    # Devices over which clients are sharded; None: all, at most one per client of a cohort
    config.plan.devices = placeholder(int)
    # Devices that share one network, each a part of it; None: each has a whole network
    config.plan.model = placeholder(int)
    # Seeds of one config that train at once in one program (--seeds, tables); None: one
    config.plan.lanes = placeholder(int)
    # Where examples are kept: "device", "host" or "disk"; None: where they fit, which is logged
    config.plan.data = placeholder(str)
    # Where client states are kept: "device", or "host", "disk" for large populations
    config.plan.hold = "device"

    config.adversary = ConfigDict()
    # "sign_flip", "alie", "label_flip", "backdoor(target=0) | scaled":
    # fedjax_core/uplink/attacks.py
    config.adversary.attack = placeholder(str)
    # Fraction of the clients that attack, the same clients in all rounds
    config.adversary.fraction = placeholder(float)

    config.compression = ConfigDict()
    # "quantise(bits=4)", "top_k(fraction=0.01)": fedjax_core/uplink/compression.py
    config.compression.uplink = placeholder(str)
    config.compression.downlink = placeholder(str)  # "float16" or "bfloat16"

    config.aggregation = ConfigDict()
    # Robust rule instead of the mean of deltas or class means: "median", "mixing |
    # krum(attackers=0.2)": fedjax_core/uplink/robust_aggregation.py
    config.aggregation.rule = placeholder(str)
    # Uplinks with NaN or Inf: "leave_out" the client, or "end" the run; None: left out with a rule
    # or privacy.
    config.aggregation.not_finite = placeholder(str)

    # Settings of local training by client: a number for all, "uniform(low=1, high=10)",
    # "tiers(weights=(1, 3), values=(10, 2))", "from_csv(path=...)":
    # fedjax_core/devices/client_values.py. None: those of the method and of the optimizer.
    config.clients = ConfigDict()
    config.clients.epochs = placeholder(object)  # local epochs, in place of method.epochs
    config.clients.steps = placeholder(object)  # or local steps
    # Or as many local steps as fit into these simulated seconds of a round, by devices.profile
    config.clients.seconds = placeholder(object)
    config.clients.batch = placeholder(object)  # examples in a minibatch, in place of method.batch
    config.clients.lr = placeholder(object)  # learning rate, in place of optimizer.lr
    config.clients.rank = placeholder(object)  # of the adapter, at most its own: training/client_ranks.py

    config.devices = ConfigDict()
    # What clients' devices can do, by which rounds take simulated time:
    # "lognormal(examples_per_second=500, down=1e6, up=2e5)", "tiers(...)", "edge(...)",
    # "from_csv(path=...)": fedjax_core/devices/profiles.py. None: rounds take no time.
    config.devices.profile = placeholder(str)
    # Who can be reached in a round: "daily(mean=0.5)", "markov(on=10, off=5)", "trace(path=...)":
    # fedjax_core/devices/availability.py. None: everybody. Clients that cannot be reached count as absent.
    config.devices.availability = placeholder(str)
    # Simulated seconds after which an uplink comes too late: its client counts as absent
    config.devices.deadline = placeholder(float)
    # Clients that would come back after the deadline: "drop" (None), or "partial": they stop in time
    # and send what they have, if at least one local step fits
    config.devices.late = placeholder(str)
    # Fraction or number of a cohort's clients that the server waits for (over-selection): the first
    # to finish, the others count as absent; None: all that come back
    config.devices.wait_for = placeholder(object)
    # Simulated seconds that the server takes in each round
    config.devices.server_seconds = placeholder(float)

    # Asynchronous rounds: "fedbuff(buffer=10)" takes the first updates that arrive, "fedasync(alpha=0.6)"
    # each one; the cohort's clients train at once, by the speeds of devices.profile:
    # fedjax_core/devices/schedules.py. None: rounds are synchronous.
    config.schedule = placeholder(str)

    config.privacy = ConfigDict()
    # Client-level differential privacy. By the server: "gaussian", "adaptive(quantile=0.5)"; by
    # each client: "local_gaussian", "local_laplace" (fedjax_core/uplink/dp_mechanisms.py). With
    # noise that is correlated over rounds, for cyclic cohorts: "tree", "banded(bands=4)",
    # "blt(buffers=3)" (fedjax_core/privacy/matrix_factorization.py). Needs clip, delta, and noise
    # or epsilon.
    config.privacy.mechanism = placeholder(str)
    # What is protected. None: "client", with all its data. "example": each example of a client, by
    # DP-SGD in its local training (fedjax_core/training/private_gradient.py), mechanism "gaussian"
    config.privacy.level = placeholder(str)
    # Maximum norm of a client's delta (of an example's gradient at level "example"); with "adaptive" its initial value
    config.privacy.clip = placeholder(float)
    # Noise multiplier: standard deviation of the noise over the clip (times the sensitivity)
    config.privacy.noise = placeholder(float)
    # Instead of the noise: epsilon after all rounds, from which the noise is calibrated
    config.privacy.epsilon = placeholder(float)
    config.privacy.delta = placeholder(float)  # delta of (epsilon, delta)
    # Clients in a round of the deployment, for which noise and epsilon are computed; None: as
    # simulated
    config.privacy.cohort = placeholder(int)
    # Clients of the deployment, which needs privacy.cohort; None: as simulated
    config.privacy.population = placeholder(int)
    # With cyclic cohorts, the rounds between participations of a client that are accounted for;
    # None: those of the cohorts. More than these is an error.
    config.privacy.min_separation = placeholder(int)
    # Likewise the maximum number of rounds in which a client takes part
    config.privacy.participations = placeholder(int)
    # "pld" or "rdp"; None: the tighter one that supports the sampling
    config.privacy.accountant = placeholder(str)

    # Called during the run and may stop it: "wandb(project='x')", "my.module:Name(option=1)"
    config.callbacks = ()
    # True: writes a jax.profiler trace of one round to profile/ in the work directory
    config.profile = False

    config.checkpoint = ConfigDict()
    # Minimum time between checkpoints; there is always one at the end
    config.checkpoint.seconds = 30.0
    # Number of checkpoints to keep; with 1 a damaged checkpoint cannot be recovered
    config.checkpoint.keep = 3
    return config
