"""An archive of the classes that Spark's JVM loads, so that the next one maps them instead (Java's class data sharing).

It halves Spark's start. A JVM that finds no archive writes one when it ends, after the process that it served: some 15
seconds of a processor and 150 MB in the user's cache, once for each Java and Spark. A JVM takes no archive that another
Java or other jars made, nor a damaged one; and here, none that another user could have written.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from spark_resources.errors import Refused
from spark_resources.host.private_files import is_private, private_folder

SETTLED_S = 10  # a JVM opens the file when all is ready and writes it in less than a second


def archive_options(java: Path, spark: Path, *, folder: Path, now: float) -> str:
    """The options for a JVM of this Java that runs the Spark in this folder; none where nothing can be cached.

    `folder` is the cache, `now` is in seconds since 1970.
    """
    try:
        private_folder(folder)
        made = f"{java.resolve()}\0{java.stat().st_mtime_ns}\0{spark.resolve()}\0{spark.stat().st_mtime_ns}"
        archive = folder / f"spark-{hashlib.sha256(made.encode()).hexdigest()[:16]}.jsa"
        adopt_finished(archive, now)
    except (OSError, Refused):
        return ""
    if is_private(archive):
        return f"-XX:SharedArchiveFile={archive} -XX:+VerifySharedSpaces"
    return f"-XX:ArchiveClassesAtExit={archive}.{os.getpid()}"


def adopt_finished(archive: Path, now: float) -> None:
    """Give the archive its name: one that a JVM which has ended left beside it."""
    for left in sorted(archive.parent.glob(f"{archive.name}.*")):
        if left.lstat().st_mtime > now - SETTLED_S:
            continue
        if is_private(archive) or not is_private(left, others=0):
            left.unlink()
        else:
            left.chmod(0o600)  # a JVM makes it as the user's mask says
            left.replace(archive)
