"""What is said about documents: what was found for a message, and what its reply rests on."""

from collections.abc import Iterable

from ...apps.chat.documents import AttachedDocuments, LookUp
from ...apps.documents.pages import Document


def document_lines(documents: Iterable[Document]) -> list[str]:
    """A line for each attached document."""
    lines = []
    for document in documents:
        count = len(document.pages)
        pages = f" ({count:,} pages)" if count > 1 else ""
        lines.append(f"{document.path.name}{pages}: messages are answered from it")
    return lines


def found_lines(found: LookUp) -> list[str]:
    """What was searched and found, where that needs saying."""
    if found.missing:
        return [f"(not found in the document: {found.missing}; answered without passages)"]
    return [f"(searched {found.searched})"] if found.searched else []


def source_lines(attached: AttachedDocuments, found: LookUp, reply: str) -> list[str]:
    """The quotations that bear the reply out, each with the numbers of the sentences that it does;
    then how many sentences have none.
    """
    sentences = attached.check(reply, found.passages)
    names, lines = attached.names, []
    numbers: dict[str, list[str]] = {}
    for number, sentence in enumerate(sentences, 1):
        if sentence.support is not None:
            place = names.place(found.passages[sentence.support.passage])
            line = f"{place}: “{sentence.support.quote}”"
            numbers.setdefault(line, []).append(str(number))
    for line, those in numbers.items():
        which = "" if len(sentences) == 1 else f"{', '.join(those)}: "
        lines.append(f"{which}{line}")
    without = sum(sentence.support is None for sentence in sentences)
    if without:
        looked = ", ".join(dict.fromkeys(str(file["name"]) for file in found.attachments))
        lines.append(f"{without} of {len(sentences)} sentences without a source in {looked}")
    return lines
