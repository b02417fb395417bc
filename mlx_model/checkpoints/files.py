"""Files of a checkpoint, read with errors that name the file and the line."""

import hashlib
import json
from pathlib import Path
from typing import Any

from ...runtime.errors import InputError


def read_text(path: Path) -> str:
    """A UTF-8 file. Raises InputError when it cannot be read."""
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is damaged: byte {error.start:,} is not UTF-8") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object. Raises InputError, with the line, when it does not."""
    try:
        value = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path} is not valid JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} holds a JSON {type(value).__name__}, expected an object")
    return value


def file_sha256(path: Path) -> str:
    """The sha256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def refuse_lfs_pointer(path: Path, head: bytes) -> None:
    """Raise InputError when a weight file's first bytes say that Git LFS has yet to fetch it."""
    if head and b"version https://git-lfs".startswith(head):
        raise InputError(f"{path} is a Git LFS pointer; `git lfs pull` fetches the file itself")
