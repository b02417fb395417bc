"""Folders that appear under their name when they are complete, or not at all."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ...runtime.errors import InputError

_FULL = {errno.ENOSPC, errno.EDQUOT}


def check_target(
    target: Path, overwrite: bool, is_ours: Callable[[Path], bool], command: str
) -> None:
    """Raise InputError unless `target` may be written: absent, empty, or ours to overwrite.

    `is_ours` tells whether `command` wrote a folder.
    """
    if not target.exists():
        return
    if not target.is_dir():
        raise InputError(f"{target} is a file; choose a directory that does not exist")
    if not any(target.iterdir()):
        return
    if not is_ours(target):
        raise InputError(f"{target} exists and no {command} wrote it; choose another directory")
    if not overwrite:
        raise InputError(f"{target} exists; allow overwriting it or choose another directory")


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """A directory beside `target` that takes its place at the end, or is removed.

    Raises InputError when it cannot be written, or the disk is full.
    """
    partial, old = (
        target.with_name(f".{target.name}.{os.getpid()}.{part}") for part in ("partial", "old")
    )
    created = [parent for parent in target.parents if not parent.exists()]
    try:
        partial.mkdir(parents=True)
        yield partial
        _replace(target, partial, old)
    except OSError as error:
        raise _disk_error(error, target) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if not target.exists():
            for parent in created:
                parent.rmdir()


def _replace(target: Path, partial: Path, old: Path) -> None:
    """Two renames where there was a folder before; it comes back if the second fails."""
    if not target.exists():
        partial.rename(target)
        return
    target.rename(old)
    try:
        partial.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _disk_error(error: OSError, target: Path) -> InputError:
    if error.errno in _FULL:
        return InputError(
            f"no space left on the disk of {target}; nothing was kept: free some, or choose a "
            "directory on another disk"
        )
    return InputError(f"cannot write {error.filename or target}: {error.strerror or error}")
