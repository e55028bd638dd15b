"""Pictures are drawn by a library that takes long to import, so it is imported beside other work."""

from __future__ import annotations

import sys

from lakegc_assets import pictures


def test_the_library_for_pictures_is_imported_in_the_background() -> None:
    """Code that announces a picture early finds the library imported when it draws."""
    helper = pictures.get_ready()
    helper.join(60)

    assert not helper.is_alive()
    assert "matplotlib.figure" in sys.modules
    assert pictures.in_markdown(pictures.new_figure(1, 1), "a").startswith("![a](data:image/png;base64,")
