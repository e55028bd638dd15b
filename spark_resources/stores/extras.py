"""Provider packages that are installed only on request, as extras of lakegc."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spark_resources.errors import WrongUsage

_OWN_PACKAGES = frozenset({"lakegc_assets", "spark_resources"})


@contextmanager
def needs_extra(extra: str, provider: str) -> Iterator[None]:
    """Wraps the import of a provider's modules. Raises `WrongUsage` with the extra's name if a package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in _OWN_PACKAGES:
            raise
        raise WrongUsage(
            f"{provider} needs the Python package {error.name}, which isn't installed. Install the extra '{extra}', "
            f"also on the executors' machines: pip install 'lakegc[{extra}]'"
        ) from error
