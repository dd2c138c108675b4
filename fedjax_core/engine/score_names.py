"""Names of the scores that a simulation gives, known before it trains (`federation.Evaluation` says what they mean)."""

from collections.abc import Sequence

from fedjax_core.algorithm import targets_of
from fedjax_core.engine import evaluation, evaluation_step
from fedjax_core.engine.planned import Planned
from fedjax_core.training import metrics


def of_validation(at: Planned) -> list[str]:
    """Of the scores on validation rows; none without such rows."""
    if not evaluation.validated(at.arrays.host):
        return []
    models, names = _models_and_scores(at)
    own = [f"validation/{m}/own/{name}/{s}" for m in models for name in names for s in evaluation_step.STATISTICS]
    return _of_server(at, "validation", names) + (own if {"own", "all"} & set(at.fed.evaluation.scopes) else [])


def of_test(at: Planned) -> list[str]:
    """Of the scores on test rows; those of unseen clients if the method has models for them."""
    models, names = _models_and_scores(at)
    scopes = [scope for scope in ("own", "all", "unseen") if scope in at.fed.evaluation.scopes]
    pairs = [(m, scope) for m in models for scope in scopes if (m, scope) != ("global", "all")]  # which scope "global" has
    each = [f"test/{m}/{scope}/{name}/{s}" for m, scope in pairs for name in names for s in evaluation_step.STATISTICS]
    gaps = [f"test/{m}/gap/{names[0]}" for m in models] if {"own", "unseen"} <= set(scopes) else []
    return _of_server(at, "test", names) + each + gaps


def _models_and_scores(at: Planned) -> tuple[list[str], list[str]]:
    """The models that clients are scored with, and the scores: those that all groups have."""
    targets = targets_of(at.arrays.host.train.y)
    of_all = [(*metrics.METRIC_NAMES[targets], *group.task.scores) for group in at.fed.groups]
    names = [name for name in of_all[0] if all(name in names for names in of_all)]
    models = [at.method(g).predict for g in range(len(at.fed.groups))]
    return [model for model in models[0] if all(model in others for others in models)], names


def _of_server(at: Planned, rows: str, names: Sequence[str]) -> list[str]:
    there = "global" in at.method(0).predict and "global" in at.fed.evaluation.scopes
    return [f"{rows}/global/{name}" for name in names] if there else []
