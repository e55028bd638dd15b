"""The page on settings: its tables are those that are generated from the code."""

from __future__ import annotations

import os
import re
from pathlib import Path

from spark_resources.settings import Settings
from spark_resources.stores.settings import StoreSettings
from tests.support.settings_page import HEADER, tables, updated

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
UPDATE = "UPDATE_SETTINGS=1 pytest tests/unit/test_settings_page.py"


def test_the_tables_of_the_settings_page_are_generated_from_the_code() -> None:
    """A new setting needs a text below its field. Its row appears in the section whose heading is above the field."""
    page = PAGE.read_text(encoding="utf-8")
    if os.environ.get("UPDATE_SETTINGS"):
        PAGE.write_text(updated(page), encoding="utf-8")

    assert PAGE.read_text(encoding="utf-8") == updated(page), f"settings changed: {UPDATE}"
    assert page.count(HEADER) == len(tables())


def test_documented_timeouts_of_stores_are_the_effective_ones() -> None:
    """The defaults are those of the stores, so the fields of the settings have none."""
    rows = tables()["The store"]

    for name, default in (
        ("store_connect_timeout_s", StoreSettings().connect_timeout),
        ("store_read_timeout_s", StoreSettings().read_timeout),
    ):
        assert re.search(rf"^\| `{name}` \|.*\| {default:g} \|$", rows, re.MULTILINE)


def test_every_setting_has_exactly_one_row() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", "".join(tables().values()), re.MULTILINE)

    assert sorted([*rows, "servers"]) == sorted(Settings.model_fields)
