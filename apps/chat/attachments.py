"""Files that go along with a message, in full: PDF, HTML, Markdown and text."""

from pathlib import Path

from ...runtime.errors import InputError
from ..documents.pages import Document
from ..models import Stages


def read_with_text(path: Path, stages: Stages | None = None) -> Document:
    """The file as `read_document` gives it. Raises InputError as that does, and for no text."""
    from ..documents.read import read_document
    from ..documents.result import has_text, page_notes

    progress = stages(f"reading {path.name}", "pages") if stages else None
    document = read_document(path, progress=progress)
    if not has_text(document):
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
