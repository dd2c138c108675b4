"""Kinds of scores by their names, and labels for legends, axes and help."""

import math
import re

STATISTIC_LABELS = {"mean": "", "weighted": ", weighted by examples", "lowest": ", lowest client", "highest": ", highest client"}
ROWS = {  # by scope: what a model is tested on, and when
    "own": "own test rows",
    "all": "all test data",
    "post_local": "own test rows, right after training",
    "unseen": "unseen clients' own test rows",
}
ASKED_FOR = {"macro_f1", "balanced_accuracy", "auroc"}  # accuracies that `config.evaluation.scores` names
ACCURACIES = {"accuracy", "average_precision", "micro_average_precision"} | ASKED_FOR
LOSSES = {"loss", "perplexity", "mean_squared_error", "expected_calibration_error"}
OF_LOSSES = {"loss", "error", "mae", "mse", "rmse", "nll", "ece", "brier", "perplexity"}  # words in the names of losses
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")  # of my_error as of MyError, the name of a class
GAP = "gap"  # scope of a difference of two accuracies


def is_accuracy(name: str) -> bool:
    """Returns whether a score is in [0, 1] and larger is better, such as an average precision."""
    return not ACCURACIES.isdisjoint(name.split("/")) and not is_gap(name)


def is_gap(name: str) -> bool:
    """Returns whether a score is a participation gap: accuracy of those that train minus others."""
    return name.split("/")[2:3] == [GAP]


def is_loss(name: str) -> bool:
    """Returns whether a score is a loss or similar: smaller is better, such as a perplexity.

    A score on test or validation data is one if its name has the word "loss" or "error", or the
    short name of a loss, such as "mae" or "nll".

    >>> is_loss("test/global/perplexity"), is_loss("test/global/own/my_error/mean"), is_loss("test/global/errors")
    (True, True, False)
    >>> is_loss("validation/global/MeanAbsoluteError"), is_loss("validation/global/RMSE")
    (True, True)
    """
    parts = name.split("/")
    has_word = any(word.lower() in OF_LOSSES for part in parts[2:] for word in WORD.findall(part))
    return not LOSSES.isdisjoint(parts) or (parts[0] in ("test", "validation") and has_word)


def is_r2(name: str) -> bool:
    """Returns whether a score is a share of explained variance: at most 1, possibly negative."""
    return "r2" in name.split("/") and not is_gap(name)


def is_headline(name: str) -> bool:
    """Returns whether a score is the main measure of a model: an accuracy or R2."""
    return is_accuracy(name) or is_r2(name)


def is_overall(name: str) -> bool:
    """Returns whether a score is of a model on all examples, or the mean over clients."""
    return name.count("/") < 3 or name.endswith("/mean")


def is_requested(name: str) -> bool:
    """Returns whether a score is an accuracy that only `config.evaluation.scores` adds."""
    return not ASKED_FOR.isdisjoint(name.split("/"))


def better_direction(name: str) -> str:
    """Returns which value of a score is better: "larger", "smaller" for losses, or "neither".

    >>> better_direction("test/personal/own/accuracy"), better_direction("train/loss"), better_direction("server/norm")
    ('larger', 'smaller', 'neither')
    """
    if is_headline(name) or any(part.startswith("rouge") for part in name.split("/")):
        return "larger"
    return "smaller" if is_loss(name) else "neither"


def selection_key(name: str, value: float) -> float:
    """Returns the key that is largest for a score's best value: a loss negated; -inf for NaN.

    >>> [selection_key(*score) for score in (("test/global/accuracy", 0.5), ("train/loss", 0.5), ("train/loss", math.nan))]
    [0.5, -0.5, -inf]
    """
    return -math.inf if math.isnan(value) else -value if is_loss(name) else value


def describe_direction(name: str) -> str:
    """Returns a warning for a selection by a score of which the name does not say what is better;
    "" for others."""
    if better_direction(name) != "neither":
        return ""
    return f"the largest {name} is taken as the best; a score that should be small needs loss or error in its name"


def describe_score(name: str) -> str:
    """Returns a score's name in words; a name that is not the engine's stays as it is.

    >>> describe_score("test/global/accuracy")
    'global model, all test data'
    >>> describe_score("test/personal/own/accuracy/mean")
    'personal models, own test rows'
    >>> describe_score("test/global/own/accuracy/lowest")
    'global model, own test rows, lowest client'
    >>> describe_score("validation/global/accuracy"), describe_score("validation/personal/own/accuracy/mean")
    ('global model, all validation data', 'personal models, own validation rows')
    >>> describe_score("test/global/unseen/accuracy/mean"), describe_score("test/global/gap/accuracy")
    ("global model, unseen clients' own test rows", 'global model, participation gap')
    >>> describe_score("train/loss"), describe_score("server/norm")
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
    if parts[2] not in ROWS or parts[4] not in STATISTIC_LABELS:
        return name
    return f"{model}, {ROWS[parts[2]].replace('test', parts[0])}{STATISTIC_LABELS[parts[4]]}"


def axis_label(name: str) -> str:
    """Returns the label of an axis of a score's values.

    >>> axis_label("test/global/own/accuracy/mean"), axis_label("test/global/average_precision"), axis_label("train/loss")
    ('test accuracy', 'test average precision', 'training loss')
    """
    parts = name.split("/")
    if describe_score(name) == name or parts[0] not in ("test", "validation"):
        return describe_score(name)
    if is_gap(name):
        return "participation gap"
    score = parts[-1] if len(parts) == 3 else parts[3]
    return f"{parts[0]} {score.replace('_', ' ') if score in ACCURACIES | LOSSES else score}"
