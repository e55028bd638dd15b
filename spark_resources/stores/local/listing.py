"""Walks a folder in byte order of the full keys, level by level, without following symbolic links.

Paths are bytes throughout, so that no locale alters a name. A folder sorts as its name followed by a slash:
`a-b` < `a/b` < `a0`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from spark_resources.errors import Refused

# The folder at the root for unfinished writes and the lock. Listings skip folders of this name at any depth, and no key
# may be in one, because a namespace may be inside another namespace's folder.
HIDDEN = b".lakegc-tmp"

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class WalkResult(NamedTuple):
    """One result of a walk: an object with its `status`, a common prefix (no status) or an unreadable name (no key)."""

    key: str | None
    status: os.stat_result | None


_UNREADABLE = WalkResult(None, None)


# One entry of a folder: sort key, name, whether it is a folder to enter, whether it is an object. A plain tuple,
# because a walk creates one per file.
_Entry = tuple[bytes, bytes, bool, bool]


def open_folder(name: bytes, parent: int) -> int:
    """The descriptor of a folder inside another. Raises `Refused` for a symbolic link, `OSError` for other failures."""
    try:
        return os.open(name, _FOLDER_FLAGS, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            refuse_symlink(name, parent)
        raise


def refuse_symlink(name: bytes, parent: int) -> None:
    """Raise `Refused` if the name is a symbolic link. The caller handles other file types and missing files."""
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise Refused(
            f"{os.fsdecode(name)!r} is a symbolic link. lakegc never follows symbolic links, because they may lead out "
            "of the namespace. Replace it with its target.",
            invariant=5,
        )


def open_path(root: int, names: Sequence[bytes], *, create: bool = False) -> int:
    """The descriptor of the folder at the path `names` below the root. With `create`, missing folders are created.

    At most two descriptors are open at a time, whatever the depth. Raises as `open_folder` does.
    """
    folder = os.dup(root)
    for name in names:
        try:
            child = _child_folder(name, folder, create=create)
        finally:
            os.close(folder)
        folder = child
    return folder


def _child_folder(name: bytes, parent: int, *, create: bool) -> int:
    if create:
        try:
            os.mkdir(name, dir_fd=parent)
        except FileExistsError:
            pass  # if it is not a folder, opening it fails
        else:
            os.fsync(parent)
    return open_folder(name, parent)


@contextmanager
def open_chain(root: int, names: Sequence[bytes], *, create: bool) -> Iterator[list[int]]:
    """Descriptors of the root and of every folder on the path `names`. With `create`, creates missing folders."""
    chain = [os.dup(root)]
    try:
        for name in names:
            chain.append(_child_folder(name, chain[-1], create=create))
        yield chain
    finally:
        for descriptor in chain:
            os.close(descriptor)


def walk(root: int, prefix: bytes, *, after: bytes = b"", group_folders: bool = False) -> Iterator[WalkResult]:
    """Everything below `root` whose key starts with `prefix` and is greater than `after`, in byte order.

    With `group_folders`, the folders found are not entered: each is yielded once if it contains an object. Only the
    names in the current folder and its parents are held in memory. Files that are deleted during the walk are left out.
    """
    base = prefix[: prefix.rfind(b"/") + 1]
    start = _open_base(root, base)
    if start is None:
        return
    stack = [(start, base, iter(_wanted_entries(start, base, prefix, after)))]
    try:
        while stack:
            folder, base, entries = stack[-1]
            entry = next(entries, None)
            if entry is None:
                os.close(stack.pop()[0])
                continue
            key, raw, is_folder, is_object = entry
            if is_folder:
                child = _open_child(folder, raw)
                if child is None:
                    continue
                if group_folders:
                    yield from _prefix_if_not_empty(child, key)
                else:
                    stack.append((child, key, iter(_wanted_entries(child, key, prefix, after))))
            elif is_object:
                try:
                    yield WalkResult(key.decode(), os.stat(raw, dir_fd=folder, follow_symlinks=False))
                except FileNotFoundError:
                    continue
            else:
                yield _UNREADABLE
    finally:
        for folder, _, _ in stack:
            os.close(folder)


def _open_base(root: int, base: bytes) -> int | None:
    """The descriptor of the folder `base`, which ends in a slash or is empty; None if no key starts with it."""
    names = base.split(b"/")[:-1]
    if b"\0" in base or any(name in (b"", b".", b"..", HIDDEN) for name in names):
        return None
    try:
        return open_path(root, names)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return None
        raise


def _open_child(folder: int, name: bytes) -> int | None:
    try:
        return open_folder(name, folder)
    except (FileNotFoundError, NotADirectoryError):  # deleted or replaced since its name was read
        return None


def _wanted_entries(folder: int, base: bytes, prefix: bytes, after: bytes) -> list[_Entry]:
    """The entries of one folder that can lead to a wanted key, in the order of their keys.

    An entry is marked as unreadable if its name is not UTF-8, or if it is neither a file nor a folder.
    """
    wanted: list[_Entry] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            raw = os.fsencode(entry.name)
            if raw == HIDDEN:
                continue
            is_folder = entry.is_dir(follow_symlinks=False)
            key = base + raw + b"/" if is_folder else base + raw
            if not key.startswith(prefix):
                continue
            if after and key <= after and not (is_folder and after.startswith(key)):
                continue
            is_utf8 = raw.isascii() or _is_utf8(raw)
            wanted.append((key, raw, is_folder and is_utf8, is_utf8 and entry.is_file(follow_symlinks=False)))
    wanted.sort()
    return wanted


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _prefix_if_not_empty(child: int, prefix: bytes) -> Iterator[WalkResult]:
    """A folder as a common prefix, if it contains an object; closes `child`."""
    try:
        has_object = any(entry.key is not None for entry in walk(child, b""))
    finally:
        os.close(child)
    if has_object:
        yield WalkResult(prefix.decode(), None)
