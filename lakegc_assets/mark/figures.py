"""Figures for Dagster's UI, which shows images in Markdown if their bytes are inlined."""

from __future__ import annotations

import base64
import io
import os
import threading
import warnings
from typing import TYPE_CHECKING

from spark_resources.host.user_folders import cache_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def import_in_background() -> threading.Thread:
    """Import matplotlib, which takes more than a second, in a thread, while this process waits for something else.
    Returns the thread."""
    helper = threading.Thread(target=_figure_class, name="lakegc-pictures")
    helper.start()
    return helper


def new_figure(width: float, height: float) -> Figure:
    """An empty figure; sizes are in inches, at 100 pixels per inch."""
    return _figure_class()(figsize=(width, height), layout="constrained", dpi=100)


def _figure_class() -> type[Figure]:
    """matplotlib's `Figure` class. matplotlib's cache goes into lakegc's cache folder."""
    os.environ.setdefault("MPLCONFIGDIR", str(cache_folder() / "matplotlib"))
    from matplotlib.figure import Figure

    return Figure


def in_markdown(figure: Figure, title: str) -> str:
    """The figure as an inline PNG in one line of Markdown."""
    picture = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # glyphs missing from the font are drawn as boxes
        figure.savefig(picture, format="png")
    return f"![{title}](data:image/png;base64,{base64.b64encode(picture.getvalue()).decode()})"
