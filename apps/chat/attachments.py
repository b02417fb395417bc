"""Files that go along with a message, in full: PDF, HTML, Markdown and text."""

from difflib import get_close_matches
from pathlib import Path

from ...runtime.errors import InputError
from ..documents.pages import Document
from ..documents.read import read_document
from ..documents.result import page_notes
from ..models import Stages


def existing(name: str) -> Path:
    """The absolute path of the file `name`. Raises InputError when there is none."""
    path = Path(name).expanduser()
    try:
        if not path.exists():
            raise InputError(f"there is no file {name}{_nearest(path)}")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name:.80} cannot be read: {reason}; check its name") from None
    return path.absolute()


def read_with_text(path: Path, stages: Stages | None = None) -> Document:
    """The file as `read_document` gives it. Raises InputError as that does, and for no text."""
    progress = stages(f"reading {path.name}", "pages") if stages else None
    document = read_document(path, progress=progress)
    if not any(page.text.strip() for page in document.pages):
        raise InputError(page_notes([document])[0])
    return document


def attachment(document: Document) -> dict[str, str]:
    """The whole document as {"name", "text"}; of several pages each begins with its number."""
    pages = document.pages
    if len(pages) == 1:
        text = pages[0].text
    else:
        text = "\n\n".join(f"[p. {page.label}]\n{page.text}".rstrip() for page in pages)
    return {"name": document.path.name, "text": text}


def _nearest(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f": there is no directory {path.parent}"
    near = get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.parent / near[0]}?" if near else f" in {path.parent.resolve()}"
