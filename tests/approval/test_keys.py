"""Which keys a mark may name at all: the vectorised rule is the plain one, and `.` and `..` lead nowhere."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.approving.approved_set import lines_in, strange_keys
from spark_resources.model import is_candidate

PIECES = st.sampled_from(
    [
        "data",
        "data/",
        "/",
        "//",
        "_lakefs/",
        "..",
        ".",
        "s3://",
        "dummy",
        "a",
        "é",
        "\n",
        "0a1b-00001",
        "-12345",
        "١٢٣٤٥",
    ]
)
KEYS = st.one_of(st.lists(PIECES, max_size=5).map("".join), st.text(max_size=12))


@pytest.mark.parametrize("local_adapter", [True, False])
@given(keys=st.lists(KEYS, max_size=20))
def test_a_strange_key_passes(local_adapter: bool, keys: list[str]) -> None:
    """Strange is each key that is no candidate, and each with `.` or `..` between slashes; and no other."""
    expected = [
        key for key in keys if not is_candidate(key, local_adapter=local_adapter) or {".", ".."} & set(key.split("/"))
    ]

    assert strange_keys(pa.array(keys, pa.string()), local_adapter=local_adapter).to_pylist() == expected


def test_a_row_without_a_key_passes() -> None:
    """A null is strange."""
    assert strange_keys(pa.array(["data/a", None], pa.string()), local_adapter=False).to_pylist() == [None]


@pytest.mark.parametrize(
    ("data", "keys"), [(b"", []), (b"a\n", ["a"]), (b"a\nb\n", ["a", "b"]), (b"\n", [""]), (b"a\r\n", ["a\r"])]
)
def test_a_line_of_the_text_is_overlooked(data: bytes, keys: list[str]) -> None:
    """Each line of the text is one key, to the byte."""
    assert lines_in(data).to_pylist() == keys
