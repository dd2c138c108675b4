"""Figures of runs, from metrics.jsonl and the label table in run.json.

Each function returns the figure and writes it to `path`, whose suffix is the format (.png, .pdf,
.svg), with its numbers in a CSV file beside it. Figures are matplotlib objects without pyplot's
global state, so any thread can draw them.
"""

from fedjax_core.reporting.plots.cost_curves import spending
from fedjax_core.reporting.plots.embedding_plot import contours, embedding, landmarks
from fedjax_core.reporting.plots.forest_plot import Difference, Panel, differences, dots
from fedjax_core.reporting.plots.heatmaps import attention, contact_sheet, heatmap
from fedjax_core.reporting.plots.label_distribution import partition_bubbles
from fedjax_core.reporting.plots.run_overview import run_plots
from fedjax_core.reporting.plots.score_curves import curves, labels_of
from fedjax_core.reporting.plots.style import write

__all__ = [
    "Difference",
    "Panel",
    "attention",
    "contact_sheet",
    "contours",
    "curves",
    "differences",
    "dots",
    "embedding",
    "heatmap",
    "labels_of",
    "landmarks",
    "partition_bubbles",
    "run_plots",
    "spending",
    "write",
]
