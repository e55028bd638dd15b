"""The archive of Spark's classes: written by the first start, used once it is complete, and separate for each version
of Java and Spark."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_resources.spark.class_archive import COMPLETE_AFTER_S, archive_options

NOW = 1_800_000_000.0


@pytest.fixture
def parts(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A Java installation, a Spark installation and a cache."""
    java, spark = tmp_path / "java", tmp_path / "pyspark"
    java.write_bytes(b"java")
    spark.mkdir()
    return java, spark, tmp_path / "cache" / "lakegc"


def written(options: str, *, age_s: float) -> Path:
    """The archive that a JVM with these options wrote, with a modification time this long ago."""
    file = Path(options.partition("-XX:ArchiveClassesAtExit=")[2])
    file.write_bytes(b"classes")
    os.utime(file, (NOW - age_s, NOW - age_s))
    return file


def test_the_first_start_writes_an_archive_and_the_next_one_uses_it(parts: tuple[Path, Path, Path]) -> None:
    """The JVM verifies the archive's checksums when it loads it."""
    java, spark, folder = parts
    archive = written(archive_options(java, spark, folder=folder, now=NOW), age_s=COMPLETE_AFTER_S + 1)
    options = archive_options(java, spark, folder=folder, now=NOW)

    assert options.startswith("-XX:SharedArchiveFile=")
    assert "-XX:+VerifySharedSpaces" in options
    assert not archive.exists()
    assert archive_options(java, spark, folder=folder, now=NOW) == options


def test_a_recently_changed_archive_is_not_used(parts: tuple[Path, Path, Path]) -> None:
    """Another JVM may still be writing it, so it is left alone."""
    java, spark, folder = parts
    archive = written(archive_options(java, spark, folder=folder, now=NOW), age_s=1)

    assert "ArchiveClassesAtExit" in archive_options(java, spark, folder=folder, now=NOW)
    assert archive.exists()


def test_each_java_and_spark_installation_has_its_own_archive(parts: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """A Java installation that is updated in place also gets a new archive."""
    java, spark, folder = parts
    written(archive_options(java, spark, folder=folder, now=NOW), age_s=60)
    assert "SharedArchiveFile" in archive_options(java, spark, folder=folder, now=NOW)

    assert "ArchiveClassesAtExit" in archive_options(java, tmp_path, folder=folder, now=NOW)
    os.utime(java, (1, 1))
    assert "ArchiveClassesAtExit" in archive_options(java, spark, folder=folder, now=NOW)


def test_spark_starts_without_an_archive_if_the_cache_cannot_be_created(parts: tuple[Path, Path, Path]) -> None:
    """The archive only saves time."""
    java, spark, _ = parts

    assert archive_options(java, spark, folder=java / "cache", now=NOW) == ""
