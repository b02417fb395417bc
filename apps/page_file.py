"""An HTML file that asks for nothing else: its policy, and writing it whole."""

import os
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

from ..runtime.errors import InputError


def page_policy(script: str, style: str) -> str:
    """A Content-Security-Policy that lets a page run and fetch nothing but what stands in it."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def write_page_file(path: Path, content: bytes) -> None:
    """Write `path` whole or not at all. Raises InputError when it cannot be written."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InputError(f"{path} cannot be written: {error.strerror}; name another file") from None


def _digest(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode("utf-8")).digest()).decode("ascii")
