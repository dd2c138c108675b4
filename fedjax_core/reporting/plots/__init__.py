"""Figures of runs, from metrics.jsonl and the label table in run.json.

Each function returns the figure and writes it to `path`, whose suffix is the format (.png, .pdf,
.svg), with its numbers in a CSV file beside it. Figures are matplotlib objects without pyplot's
global state, so any thread can draw them.
"""

from fedjax_core.reporting.plots.cost_curves import plot_costs
from fedjax_core.reporting.plots.embedding_plot import plot_contours, plot_embedding, plot_landmarks
from fedjax_core.reporting.plots.forest_plot import Difference, Panel, plot_differences, plot_dots
from fedjax_core.reporting.plots.heatmaps import plot_attention, plot_contact_sheet, plot_heatmap
from fedjax_core.reporting.plots.label_distribution import plot_partition
from fedjax_core.reporting.plots.run_overview import plot_run
from fedjax_core.reporting.plots.score_curves import labels_of, plot_curves
from fedjax_core.reporting.plots.style import write_figure

__all__ = [
    "Difference",
    "Panel",
    "labels_of",
    "plot_attention",
    "plot_contact_sheet",
    "plot_contours",
    "plot_costs",
    "plot_curves",
    "plot_differences",
    "plot_dots",
    "plot_embedding",
    "plot_heatmap",
    "plot_landmarks",
    "plot_partition",
    "plot_run",
    "write_figure",
]
