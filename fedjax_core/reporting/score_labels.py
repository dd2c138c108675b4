"""Scores in words, as legends, axes and help have them."""

import math

STATISTICS = {"mean": "", "weighted": ", weighted by examples", "lowest": ", lowest client", "highest": ", highest client"}
ROWS = {  # by scope: what a model is tested on, and of which moment it is
    "own": "own test rows",
    "all": "all test data",
    "post_local": "own test rows, right after training",
    "unseen": "unseen clients' own test rows",
}
ASKED_FOR = {"macro_f1", "balanced_accuracy", "auroc"}  # accuracies that `config.evaluation.scores` names
ACCURACIES = {"accuracy", "average_precision", "micro_average_precision"} | ASKED_FOR
LOSSES = {"loss", "perplexity", "mean_squared_error", "expected_calibration_error"}
OF_LOSSES = {"loss", "error"}  # words in a score's name that say that it is one
GAP = "gap"  # scope of a difference of two accuracies


def is_accuracy(name: str) -> bool:
    """Whether a score of this name is an accuracy, or like one: in [0, 1], the larger the better, such as an average precision."""
    return not ACCURACIES.isdisjoint(name.split("/")) and not is_gap(name)


def is_gap(name: str) -> bool:
    """Whether a score of this name is a participation gap: the accuracy of clients that train minus that of unseen ones."""
    return name.split("/")[2:3] == [GAP]


def is_loss(name: str) -> bool:
    """Whether a score of this name is a loss, or like one: the smaller the better, such as a perplexity; also a score on test or
    validation rows with the word "loss" or "error" in its name.

    >>> is_loss("test/global/perplexity"), is_loss("test/global/own/my_error/mean"), is_loss("test/global/errors")
    (True, True, False)
    """
    parts = name.split("/")
    has_word = any(not OF_LOSSES.isdisjoint(part.split("_")) for part in parts[2:])
    return not LOSSES.isdisjoint(parts) or (parts[0] in ("test", "validation") and has_word)


def is_r2(name: str) -> bool:
    """Whether a score of this name is a share of variance explained: at most 1, maybe negative."""
    return "r2" in name.split("/") and not is_gap(name)


def is_headline(name: str) -> bool:
    """Whether a score of this name says of a model at first how good it is."""
    return is_accuracy(name) or is_r2(name)


def is_asked_for(name: str) -> bool:
    """Whether a score of this name is an accuracy that a config asks for beside those of its targets."""
    return not ASKED_FOR.isdisjoint(name.split("/"))


def better(name: str) -> str:
    """Which of two values of a score is the better one: the "larger" accuracy or ROUGE, the "smaller" loss, of others "neither".

    >>> better("test/personal/own/accuracy"), better("train/loss"), better("server/norm")
    ('larger', 'smaller', 'neither')
    """
    if is_headline(name) or any(part.startswith("rouge") for part in name.split("/")):
        return "larger"
    return "smaller" if is_loss(name) else "neither"


def merit(name: str, value: float) -> float:
    """What a score's best value is the largest of: of a loss the opposite, else the value. NaN is the worst of all.

    >>> merit("test/global/accuracy", 0.5), merit("test/global/loss", 0.5), merit("test/global/loss", math.nan)
    (0.5, -0.5, -inf)
    """
    return -math.inf if math.isnan(value) else -value if is_loss(name) else value


def spoken(name: str) -> str:
    """A score's name in words; one that is not of the engine's (`engine.simulation_spec.Evaluation`) stays as it is.

    >>> spoken("test/global/accuracy")
    'global model, all test data'
    >>> spoken("test/personal/own/accuracy/mean")
    'personal models, own test rows'
    >>> spoken("test/global/own/accuracy/lowest")
    'global model, own test rows, lowest client'
    >>> spoken("validation/global/accuracy"), spoken("validation/personal/own/accuracy/mean")
    ('global model, all validation data', 'personal models, own validation rows')
    >>> spoken("test/global/unseen/accuracy/mean"), spoken("test/global/gap/accuracy")
    ("global model, unseen clients' own test rows", 'global model, participation gap')
    >>> spoken("train/loss"), spoken("server/norm")
    ('training loss', 'server/norm')
    """
    if name == "train/loss":
        return "training loss"
    parts = name.split("/")
    if parts[0] not in ("test", "validation") or not (len(parts) in (3, 5) or is_gap(name)):
        return name
    model = {"global": "global model", "personal": "personal models"}.get(parts[1], parts[1])
    if len(parts) == 3:
        return f"{model}, {ROWS['all'].replace('test', parts[0])}"
    if is_gap(name):
        return f"{model}, participation gap"
    if parts[2] not in ROWS or parts[4] not in STATISTICS:
        return name
    return f"{model}, {ROWS[parts[2]].replace('test', parts[0])}{STATISTICS[parts[4]]}"


def axis(name: str) -> str:
    """What stands beside an axis of a score's values.

    >>> axis("test/global/own/accuracy/mean"), axis("test/global/loss"), axis("train/loss"), axis("test/personal/own/rouge1/mean")
    ('test accuracy', 'test loss', 'training loss', 'test rouge1')
    >>> axis("test/global/average_precision"), axis("test/global/own/mean_squared_error/mean")
    ('test average precision', 'test mean squared error')
    """
    parts = name.split("/")
    if spoken(name) == name or parts[0] not in ("test", "validation"):
        return spoken(name)
    if is_gap(name):
        return "participation gap"
    score = parts[-1] if len(parts) == 3 else parts[3]
    return f"{parts[0]} {score.replace('_', ' ') if score in ACCURACIES | LOSSES else score}"
