"""Analyses of trained models, given a `Simulator` and one of its states; `plots` draws the
results.

`model` is a predictor of the method ("global", "personal"); None: the personal one if there is one.
Clients are processed one after another, outside of rounds. `simulation` and `state` are those of a
run.
"""

from fedjax_core.reporting.analysis.client_models import (
    choose_scored_model,
    compute_class_accuracies,
    compute_client_accuracies,
    compute_outputs,
    count_cohort_labels,
    find_network,
)
from fedjax_core.reporting.analysis.feature_embedding import (
    collect_class_knowledge,
    compute_attention,
    compute_features,
    embed_by_tsne,
    with_centroids,
)
from fedjax_core.reporting.analysis.linear_probe import score_match, score_probe
from fedjax_core.reporting.analysis.loss_landscape import (
    compute_drift,
    compute_landscape,
    compute_surroundings,
    find_plane,
)
from fedjax_core.reporting.analysis.parameter_counts import count_communication, count_sizes

__all__ = [
    "choose_scored_model",
    "collect_class_knowledge",
    "compute_attention",
    "compute_class_accuracies",
    "compute_client_accuracies",
    "compute_drift",
    "compute_features",
    "compute_landscape",
    "compute_outputs",
    "compute_surroundings",
    "count_cohort_labels",
    "count_communication",
    "count_sizes",
    "embed_by_tsne",
    "find_network",
    "find_plane",
    "score_match",
    "score_probe",
    "with_centroids",
]
