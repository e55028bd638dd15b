"""The library that draws plots is slow to import, so it is imported in the background."""

from __future__ import annotations

import sys

from lakegc_assets.mark import figures


def test_matplotlib_is_imported_in_the_background() -> None:
    """Code that announces a plot early finds the library already imported when it draws."""
    helper = figures.import_in_background()
    helper.join(60)

    assert not helper.is_alive()
    assert "matplotlib.figure" in sys.modules
    assert figures.in_markdown(figures.new_figure(1, 1), "a").startswith("![a](data:image/png;base64,")
