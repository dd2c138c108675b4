"""Analyses of trained models, given a `Simulation` and one of its states; `plots` draws the
results.

`model` is a predictor of the method ("global", "personal"); None: the personal one if there is one.
Clients are processed one after another, outside of rounds. `simulation` and `state` are those of a
run.
"""

from fedjax_core.reporting.analysis.client_models import class_accuracies, client_accuracies, model_of, outputs
from fedjax_core.reporting.analysis.feature_embedding import Points, attention, class_knowledge, features, tsne, with_centroids
from fedjax_core.reporting.analysis.linear_probe import match, probe
from fedjax_core.reporting.analysis.loss_landscape import Landscape, Plane, landscape, plane, surroundings
from fedjax_core.reporting.analysis.parameter_counts import communication, sizes

__all__ = [
    "Landscape",
    "Plane",
    "Points",
    "attention",
    "class_accuracies",
    "class_knowledge",
    "client_accuracies",
    "communication",
    "features",
    "landscape",
    "match",
    "model_of",
    "outputs",
    "plane",
    "probe",
    "sizes",
    "surroundings",
    "tsne",
    "with_centroids",
]
