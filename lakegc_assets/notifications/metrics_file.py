"""The file with the metrics of all repositories, for the textfile collector of Prometheus's node exporter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from spark_resources.errors import LakegcError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

LOCK_TIMEOUT_S = 10.0
LABEL = "repository"


@dataclass(frozen=True, slots=True)
class Families:
    """Metrics, in the form that prometheus_client writes and pushes."""

    metrics: tuple[Metric, ...]

    def collect(self) -> Iterator[Metric]:
        yield from self.metrics


def update(path: Path, repository: str, families: Families) -> None:
    """Replace a repository's series in these families in the file, and keep all others. Readers see the old or the new
    file, never a part of it; processes that write at the same time wait for each other.

    Raises `LakegcError` if the folder doesn't exist or isn't writable, the file isn't a metrics file, or another
    process doesn't finish in time. In that case, nothing is overwritten.
    """
    from prometheus_client import write_to_textfile

    if not path.parent.is_dir():
        raise LakegcError(f"the folder {path.parent} doesn't exist. Create it, or correct LAKEGC_METRICS_FILE.")
    try:
        with FileLock(f"{path}.lock", timeout=LOCK_TIMEOUT_S):
            merged = merge(read(path), repository, families.metrics)
            write_to_textfile(str(path), Families(merged))
    except Timeout:
        raise LakegcError(
            f"another process has been writing to {path} for more than {LOCK_TIMEOUT_S:g} s. The next run will "
            "write the metrics."
        ) from None
    except OSError as error:
        raise LakegcError(
            f"{path} can't be written: {error.strerror or type(error).__name__}. Make the folder writable for this "
            "user, or correct LAKEGC_METRICS_FILE."
        ) from error


def read(path: Path) -> list[Metric]:
    """The metrics in the file; none if the file doesn't exist. Raises `LakegcError` if it contains anything else."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        text = path.read_text(encoding="utf-8")
        return list(text_string_to_metric_families(text))
    except FileNotFoundError:
        return []
    except ValueError:  # from the parser or the decoding of the text
        raise LakegcError(
            f"{path} is not a metrics file, so it wasn't overwritten. Remove it, or correct LAKEGC_METRICS_FILE."
        ) from None


def merge(old: Iterable[Metric], repository: str, new: Iterable[Metric]) -> tuple[Metric, ...]:
    """The new families, with the other repositories' series added, and the old families that aren't among the new."""
    merged = {family.name: family for family in new}
    for family in old:
        if family.name not in merged:
            merged[family.name] = family
            continue
        others = [sample for sample in family.samples if sample.labels.get(LABEL) not in (None, repository)]
        merged[family.name].samples = sorted(
            [*merged[family.name].samples, *others], key=lambda sample: sample.labels.get(LABEL, "")
        )
    return tuple(merged[name] for name in sorted(merged))
