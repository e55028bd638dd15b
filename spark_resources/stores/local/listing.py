"""A folder seen as keys: opened step by step without following links, walked in the byte order of the full keys.

Paths are bytes throughout, so that no locale changes a name. A folder sorts as its name with a slash behind it:
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

# At the root, for unfinished writes and the lock. No listing shows such a folder and no key lies in one, at any depth:
# a namespace may lie inside another one's folder.
HIDDEN = b".lakegc-tmp"

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Found(NamedTuple):
    """One thing met on a walk: an object (with `status`), a folded folder (without), or a name that can't be a key."""

    key: str | None
    status: os.stat_result | None


_UNREADABLE = Found(None, None)


# What a folder holds: sorts as, name, is a folder to enter, is an object. A plain tuple, since a walk makes one a file.
_Name = tuple[bytes, bytes, bool, bool]


def open_folder(name: bytes, parent: int) -> int:
    """The descriptor of a folder inside another. Raises `Refused` for a symbolic link, `OSError` otherwise."""
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            refuse_link(name, parent)
        raise


def refuse_link(name: bytes, parent: int) -> None:
    """Raises `Refused` where the name is a symbolic link; anything else, or nothing, is for the caller."""
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise Refused(
            f"{os.fsdecode(name)!r} is a symbolic link, and a store never follows one: it may lead out of the "
            "namespace. Replace it by what it points to.",
            invariant=5,
        )


def descended(root: int, names: Sequence[bytes], *, make: bool = False) -> int:
    """The descriptor of the folder below the root along `names`, each made where missing, if asked.

    Two are open at a time, however deep it is. Raises as `open_folder` does.
    """
    folder = os.dup(root)
    for name in names:
        try:
            child = _child_folder(name, folder, make=make)
        finally:
            os.close(folder)
        folder = child
    return folder


def _child_folder(name: bytes, parent: int, *, make: bool) -> int:
    if make:
        try:
            os.mkdir(name, dir_fd=parent)
        except FileExistsError:
            pass  # made before, or something else is there, which opening it will tell
        else:
            os.fsync(parent)
    return open_folder(name, parent)


@contextmanager
def opened_chain(root: int, names: Sequence[bytes], *, make: bool) -> Iterator[list[int]]:
    """Descriptors of the root (first) and of every folder below it along `names`; made where missing, if asked."""
    chain = [os.dup(root)]
    try:
        for name in names:
            chain.append(_child_folder(name, chain[-1], make=make))
        yield chain
    finally:
        for descriptor in chain:
            os.close(descriptor)


def walk(root: int, prefix: bytes, *, after: bytes = b"", fold: bool = False) -> Iterator[Found]:
    """Everything below `root` whose key starts with `prefix` and is greater than `after`, in byte order.

    With `fold`, folders behind the prefix are told once, if they hold an object, instead of being entered. One folder's
    names are held at a time (and those of its parents). What is deleted during the walk is left out.
    """
    base = prefix[: prefix.rfind(b"/") + 1]
    start = _descended(root, base)
    if start is None:
        return
    stack = [(start, base, iter(_names(start, base, prefix, after)))]
    try:
        while stack:
            folder, base, names = stack[-1]
            name = next(names, None)
            if name is None:
                os.close(stack.pop()[0])
                continue
            key, raw, is_folder, is_object = name
            if is_folder:
                child = _child(folder, raw)
                if child is None:
                    continue
                if fold:
                    yield from _folded(child, key)
                else:
                    stack.append((child, key, iter(_names(child, key, prefix, after))))
            elif is_object:
                try:
                    yield Found(key.decode(), os.stat(raw, dir_fd=folder, follow_symlinks=False))
                except FileNotFoundError:
                    continue
            else:
                yield _UNREADABLE
    finally:
        for folder, _, _ in stack:
            os.close(folder)


def _descended(root: int, base: bytes) -> int | None:
    """The folder `base` (which ends in a slash, or is empty), or None where no key can start with it."""
    names = base.split(b"/")[:-1]
    if b"\0" in base or any(name in (b"", b".", b"..", HIDDEN) for name in names):
        return None
    try:
        return descended(root, names)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return None
        raise


def _child(folder: int, name: bytes) -> int | None:
    try:
        return open_folder(name, folder)
    except (FileNotFoundError, NotADirectoryError):  # deleted or replaced since its name was read
        return None


def _names(folder: int, base: bytes, prefix: bytes, after: bytes) -> list[_Name]:
    """The names in one folder that can lead to a wanted key, in the order of their keys.

    A name that is not UTF-8, and what is neither a file nor a folder, is told as no object and not entered.
    """
    wanted: list[_Name] = []
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
            is_text = raw.isascii() or _is_text(raw)
            wanted.append((key, raw, is_folder and is_text, is_text and entry.is_file(follow_symlinks=False)))
    wanted.sort()
    return wanted


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _folded(child: int, below: bytes) -> Iterator[Found]:
    """A folder as a common prefix, if some object lies in it; closes `child`."""
    try:
        has_object = any(found.key is not None for found in walk(child, b""))
    finally:
        os.close(child)
    if has_object:
        yield Found(below.decode(), None)
