"""The keys that a mark may name: the vectorized rule equals the plain one, and dot segments are refused."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.approval.verify_files import forbidden_keys, lines_of_text
from lakegc_assets.rules.addresses import is_candidate

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
def test_forbidden_keys_are_those_that_cannot_be_candidates_or_have_dot_segments(
    local_adapter: bool, keys: list[str]
) -> None:
    """The vectorized rule agrees with the plain one, key by key."""
    expected = [
        key for key in keys if not is_candidate(key, local_adapter=local_adapter) or {".", ".."} & set(key.split("/"))
    ]

    assert forbidden_keys(pa.array(keys, pa.string()), local_adapter=local_adapter).to_pylist() == expected


def test_a_null_key_is_forbidden() -> None:
    """A row without an address is refused with the mark."""
    assert forbidden_keys(pa.array(["data/a", None], pa.string()), local_adapter=False).to_pylist() == [None]


@pytest.mark.parametrize(
    ("data", "keys"), [(b"", []), (b"a\n", ["a"]), (b"a\nb\n", ["a", "b"]), (b"\n", [""]), (b"a\r\n", ["a\r"])]
)
def test_each_line_of_a_text_list_of_addresses_is_one_key(data: bytes, keys: list[str]) -> None:
    """Keys are kept byte for byte."""
    assert lines_of_text(data, "here").to_pylist() == keys
