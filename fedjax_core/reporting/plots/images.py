"""Images side by side."""

import os
from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from fedjax_core.reporting.plots import style


def contact_sheet(rows: Mapping[str, Any], path: str | os.PathLike) -> Figure:
    """Draws rows of images side by side, such as what an augmentation makes of them. It has no CSV: the pictures are the data.

    Args:
      rows: label -> images [n, H, W, C] with 1 or 3 channels, uint8 or floats in [0, 1]; what lies outside is cut.
      path: where the figure goes; the suffix says the format (.png, .pdf, .svg).

    Returns:
      The figure.

    Raises:
      OSError: if the file cannot be written.
      ValueError: if there is nothing to draw, or it is not images.
    """
    if not rows:
        raise ValueError("a contact sheet needs at least one row of images")
    sheets = {label: np.asarray(images) for label, images in rows.items()}
    for label, images in sheets.items():
        if images.ndim != 4 or images.shape[3] not in (1, 3) or not len(images):
            raise ValueError(f"row {label!r} of a contact sheet has shape {images.shape}, which is not [n, H, W, 1 or 3]")
    most = max(map(len, sheets.values()))
    with matplotlib.rc_context(style.STYLE):
        figure = Figure(figsize=(style.PAGE, (style.PAGE - 1) / most * len(sheets)), layout="constrained")
        axes = figure.subplots(len(sheets), most, squeeze=False)
        for row, (label, images) in zip(axes, sheets.items(), strict=True):
            shown = images if images.dtype == np.uint8 else np.clip(images.astype(np.float32), 0, 1)
            for place, image in zip(row, shown, strict=False):
                place.imshow(image, cmap="gray", vmin=0, vmax=255 if shown.dtype == np.uint8 else 1, interpolation="nearest")
            for place in row:
                place.axis("off")
            row[0].text(-0.08, 0.5, label, transform=row[0].transAxes, ha="right", va="center", fontsize=7)
        style.write(figure, path)
    return figure
