"""Pictures are drawn by a library that takes long to import: beside other work."""

from __future__ import annotations

import sys

from lakegc_assets import pictures


def test_what_draws_is_imported_while_all_wait() -> None:
    """Who says early that there will be a picture finds the library imported, and can draw."""
    helper = pictures.get_ready()
    helper.join(60)

    assert not helper.is_alive()
    assert "matplotlib.figure" in sys.modules
    assert pictures.in_markdown(pictures.new_figure(1, 1), "a").startswith("![a](data:image/png;base64,")
