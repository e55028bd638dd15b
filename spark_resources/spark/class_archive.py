"""An archive of the classes that Spark's JVM loads, so that the next JVM maps them (Java's class data sharing).

It halves Spark's start-up time. A JVM that finds no archive writes one when it exits, after lakegc itself has ended.
That takes about 15 seconds of CPU time and 150 MB in the user's cache, once for each combination of Java and Spark
installations. A JVM refuses an archive that is damaged, or was made by another Java installation or from other jars;
lakegc also refuses one that another user could have written.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from spark_resources.errors import Refused
from spark_resources.host.private_files import is_protected, private_folder

COMPLETE_AFTER_S = 10  # a JVM opens the file when its content is ready, and writes it in less than a second


def archive_options(java: Path, spark: Path, *, folder: Path, now: float) -> str:
    """The options for the JVM that the command `java` starts for the Spark installation in `spark`; empty if nothing
    can be cached.

    `folder` is the cache folder, `now` is in seconds since 1970.
    """
    try:
        private_folder(folder)
        identity = f"{java.resolve()}\0{java.stat().st_mtime_ns}\0{spark.resolve()}\0{spark.stat().st_mtime_ns}"
        archive = folder / f"spark-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa"
        adopt_finished(archive, now)
    except (OSError, Refused):
        return ""
    if is_protected(archive):
        return f"-XX:SharedArchiveFile={archive} -XX:+VerifySharedSpaces"
    return f"-XX:ArchiveClassesAtExit={archive}.{os.getpid()}"


def adopt_finished(archive: Path, now: float) -> None:
    """Give a finished archive its final name, unless there already is one. Deletes all other finished leftovers."""
    for leftover in sorted(archive.parent.glob(f"{archive.name}.*")):
        if leftover.lstat().st_mtime > now - COMPLETE_AFTER_S:
            continue
        if is_protected(archive) or not is_protected(leftover, forbidden=0):
            leftover.unlink()
        else:
            leftover.chmod(0o600)  # a JVM creates it with the user's umask
            leftover.replace(archive)
