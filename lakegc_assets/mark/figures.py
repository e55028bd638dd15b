"""Pictures for Dagster's UI, which shows images in Markdown where their bytes are in the text."""

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


def get_ready() -> threading.Thread:
    """Import matplotlib while this process waits for others: it takes more than a second. Returns who does it."""
    helper = threading.Thread(target=_imported, name="lakegc-pictures")
    helper.start()
    return helper


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches of 100 pixels."""
    return _imported()(figsize=(width, height), layout="constrained", dpi=100)


def _imported() -> type[Figure]:
    """matplotlib's figures. What it keeps for itself goes into lakegc's cache folder."""
    os.environ.setdefault("MPLCONFIGDIR", str(cache_folder() / "matplotlib"))
    from matplotlib.figure import Figure

    return Figure


def in_markdown(figure: Figure, title: str) -> str:
    """The figure as a PNG in a line of Markdown."""
    picture = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of letters that the font lacks: they are drawn as boxes
        figure.savefig(picture, format="png")
    return f"![{title}](data:image/png;base64,{base64.b64encode(picture.getvalue()).decode()})"
