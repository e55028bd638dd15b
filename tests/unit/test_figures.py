"""Pictures are drawn by a library that takes long to import, so it is imported beside other work."""

from __future__ import annotations

import sys

from lakegc_assets.mark import figures


def test_matplotlib_is_imported_in_the_background() -> None:
    """Code that announces a picture early finds the library imported when it draws."""
    helper = figures.import_in_background()
    helper.join(60)

    assert not helper.is_alive()
    assert "matplotlib.figure" in sys.modules
    assert figures.in_markdown(figures.new_figure(1, 1), "a").startswith("![a](data:image/png;base64,")
