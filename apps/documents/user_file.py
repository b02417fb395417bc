"""Files as the user names them."""

from difflib import get_close_matches
from pathlib import Path

from ...runtime.errors import InputError


def existing(name: str) -> Path:
    """The absolute path of the file `name`. Raises InputError where there is none."""
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            raise InputError(f"{name} is a directory; give the files in it")
        if not path.exists():
            raise InputError(f"there is no file {name}{_nearest(path)}")
    except (OSError, ValueError) as error:  # too long a name; a NUL in it
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name:.80} cannot be read: {reason}; check its name") from None
    return path.absolute()


def _nearest(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f": there is no directory {path.parent}"
    near = get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.parent / near[0]}?" if near else f" in {path.parent.resolve()}"
