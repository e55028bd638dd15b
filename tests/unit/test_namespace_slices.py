"""Which rows of a listing are candidates, decided for whole columns."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakegc_assets.rules.addresses import are_candidates
from spark_resources.model import is_candidate

_keys = st.sampled_from(
    ["data/", "data", "data/x", "data//", "dummy", "dummy/", "", "_lakefs/x", "0a-00001", "0a-0000١"]
)
_texts = st.text(st.sampled_from("da/t0-é\n"), max_size=6)


@settings(max_examples=300, deadline=None)
@given(st.lists(_keys | _texts), st.booleans())
@example([], True)
@example(["data/x", "data/y"], True)
def test_a_column_of_keys_has_the_candidates_of_its_single_keys(keys: list[str], local_adapter: bool) -> None:
    """The vectorised form agrees with the readable one."""
    judged = are_candidates(pa.array(keys, pa.string()), local_adapter=local_adapter)

    assert judged.to_pylist() == [is_candidate(key, local_adapter=local_adapter) for key in keys]
