"""Files that go along with a message: text only."""

from difflib import get_close_matches
from pathlib import Path

from ...runtime.errors import InputError

MAX_BYTES = 1 << 24  # more than the longest contexts hold; refused before it is read

# How files begin that are no text, and what to call them.
_KINDS = {
    b"%PDF-": "a PDF",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"GIF8": "a picture",
    b"PK\x03\x04": "an archive or office document",
    b"\x1f\x8b": "compressed",
}


def read_attachment(name: str) -> dict[str, str]:
    """The text of the file `name`, as {"name", "text"}.

    Raises InputError: missing, a directory, empty, too large, or no UTF-8 text.
    """
    path = Path(name).expanduser()
    try:
        size = path.stat().st_size
        if path.is_dir():
            raise InputError(f"{name} is a directory; attach one file of it")
        if size > MAX_BYTES:
            raise InputError(
                f"{name} has {size:,} bytes, at most {MAX_BYTES:,} can be attached; cut it first"
            )
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"there is no file {name}{_nearest(path)}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name} cannot be read: {reason}") from None
    return {"name": path.name, "text": _text(data, name)}


def _text(data: bytes, name: str) -> str:
    kind = next((kind for start, kind in _KINDS.items() if data.startswith(start)), None)
    if kind is not None:
        raise InputError(f"{name} is {kind}; only text files can be attached: convert it to text")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is no UTF-8 text: byte 0x{data[error.start]:02x} at offset {error.start}; "
            "convert it first, for example with iconv"
        ) from None
    if "\0" in text:
        raise InputError(f"{name} has a NUL character, so it is no text; convert it to text")
    if not text.strip():
        raise InputError(f"{name} is empty; attach a file that says something")
    return text.replace("\r\n", "\n").rstrip("\n")


def _nearest(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f": there is no directory {path.parent}"
    near = get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.parent / near[0]}?" if near else f" in {path.parent.resolve()}"
