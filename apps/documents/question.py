"""Pages and sections that a question names, and where they are in the documents.

A page is looked for by its printed label first, and by its physical number where no document has
such a label; "PDF page 47" and "physical page 47" mean the latter, "printed page 47" the former.
Numbers up to ninety-nine may be words. "The last two pages" are the file's, and are taken where the
question asks for them as they stand, or says of what: "how do I print the first page" does neither.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .sentences import content_words

_ROMAN = re.compile(r"(c{0,3})(xc|xl|l?x{0,3})(ix|iv|v?i{0,3})")  # up to 399, as prefaces have it
_ROMAN_VALUES = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}
_ONES = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEENS = (
    *("ten", "eleven", "twelve", "thirteen", "fourteen"),
    *("fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_WRITTEN = {word: number for number, word in enumerate([*_ONES, *_TEENS], 1)}
_WRITTEN |= {word: 10 * number for number, word in enumerate(_TENS, 2)}
_WORDS = rf"(?i:(?:{'|'.join(_TENS)})[- ](?:{'|'.join(_ONES)})|{'|'.join(_WRITTEN)})"
# 47, xii, A-3, B.2, twelve; a single letter only where it is a small roman numeral.
_LABEL = (
    rf"(?:\d{{1,9}}|[A-Za-z]{{1,2}}[-.]\d{{1,6}}|[ivxlc]+|[IVXLC]{{2,}}|{_WORDS})(?![\w]|[.,]\d)"
)
_TO = r"\s*(?:[-‐‑–—−]|\b(?:to|through|until|till)\b)\s*"
_RANGE = rf"{_LABEL}(?:{_TO}{_LABEL})?"
_ITEMS = rf"{_RANGE}(?:\s*(?:,\s*and|,|and|&|or)\s+{_RANGE})*"
_BEFORE = r"(?:\b(?:on|in|at|from|of|to|see)\s+)?(?:\bthe\s+)?"
_FORCE = r"(?:\b(?P<force>(?i:pdf|physical|printed))\s+)?"
_AFTER = r"(?:\s+of\s+(?:the\s+)?(?P<pdf>(?i:pdf|file))\b(?!\w))?"
_PAGES = re.compile(
    rf"{_BEFORE}{_FORCE}(?<!\b[Cc]ode )(?<!\b[Mm]an )"
    rf"(?:\b(?P<between>(?i:between))\s+)?(?i:\bpages?|\bpp?\.|\bpgs?\.?)\s*(?:(?i:nos?\.|numbers?)\s*)?"
    rf"(?P<items>(?(between){_LABEL}\s+and\s+{_LABEL}|{_ITEMS})){_AFTER}"
)
_ENDS = re.compile(
    rf"{_BEFORE}\b(?P<end>(?i:first|last|final))\s+(?:(?P<count>\d{{1,4}}|{_WORDS})\s+)?"
    r"(?i:pages?)\b(?P<whole>\s+of\s+(?:the|this|that|my)\s+(?i:pdf|file|document|book|manual|report|paper|thesis"
    r"|article|text)\b)?(?!\s+of\b)"
)
# Stems of what asks for a page as it stands; `content_words` leaves out "say", "tell", "explain".
_AS_IT_STANDS = {
    *("contain", "present", "read", "show", "stand", "summaris", "summariz", "summary"),
    *("writ", "written"),
}
_SECTION = (
    r"(?:\d{1,4}(?:\.\d{1,4})*|[A-Za-z](?:\.\d{1,4})+|[A-Z]|[IVXLC]{2,}|[ivxlc]{2,})(?!\w|\.\d)"
)
_SECTIONS = re.compile(
    rf"{_BEFORE}(?:§§?\s*|(?i:\b(?:sub)?sections?|\bsecs?\.|\bchapters?|\bchs?\.|\bchap\.|"
    rf"\bappendix|\bappendices)\s+)(?P<items>{_SECTION}(?:\s*(?:,\s*and|,|and|&|or)\s+{_SECTION})*)"
)
_SPACES = re.compile(r"\s+")


@dataclass(frozen=True)
class Reference:
    """What a question names."""

    kind: str  # "page" or "section"
    # First and last of each, as labels or section numbers; physical "-1" is the last page.
    ranges: tuple[tuple[str, str], ...]
    numbering: str  # "printed" or "physical" where the question says so, else ""
    rest: str  # the question without it


@dataclass(frozen=True)
class Contents:
    """What a document has that a question can name."""

    document: str  # sha256 of the file
    name: str
    labels: tuple[str, ...]  # of physical page 1, 2, …
    sections: tuple[tuple[str, str], ...]  # number and title, in their order


@dataclass(frozen=True)
class Filter:
    """The part of the documents that a question was held to."""

    kind: str  # "page" or "section"
    numbering: str  # "printed" or "physical"; "" of sections
    pages: dict[str, tuple[int, ...]]  # physical, by document; empty for sections
    sections: dict[str, tuple[str, ...]]  # numbers, by document; theirs and those below count
    statement: str  # one line for people: what was taken, or that there is no such thing

    @property
    def empty(self) -> bool:
        """Whether no document has what the question names."""
        return not (self.pages or self.sections)


def parse(question: str) -> Reference | None:
    """The pages that a question names, or else its sections; None where it names neither."""
    found = list(_PAGES.finditer(question))
    if found:
        forces = {(m["force"] or "").lower() or ("pdf" if m["pdf"] else "") for m in found}
        forced = next((force for force in sorted(forces) if force), "")
        numbering = "physical" if forced in ("pdf", "physical") else forced
        ranges = [pair for match in found for pair in _ranges(match)]
        return Reference("page", tuple(ranges), numbering, _without(question, found))
    if ends := _ENDS.search(question):
        rest = _without(question, [ends])
        bare = set(content_words(rest)) <= _AS_IT_STANDS and not rest.lower().startswith("how")
        if ends["whole"] or bare:
            return Reference("page", (_end_pages(ends),), "physical", rest)
    found = list(_SECTIONS.finditer(question))
    if found:
        numbers = [n for match in found for n in re.findall(_SECTION, match["items"])]
        pairs = tuple((number, number) for number in numbers)
        return Reference("section", pairs, "", _without(question, found))
    return None


def resolve(reference: Reference, documents: Sequence[Contents]) -> Filter:
    """Where the documents have what the reference names, with a statement either way."""
    if reference.kind == "section":
        return _resolve_sections(reference, documents)
    numbering = reference.numbering
    if not numbering:
        printed = any(_printed(contents, reference.ranges) for contents in documents)
        numbering = "printed" if printed else "physical"
    find = _printed if numbering == "printed" else _physical
    pages = {c.document: found for c in documents if (found := find(c, reference.ranges))}
    if not pages:
        statement = _no_pages(reference, documents)
    else:
        parts = [
            _stated(contents, pages[contents.document], numbering, len(documents) > 1)
            for contents in documents
            if contents.document in pages
        ]
        statement = "; ".join(parts)
    return Filter("page", numbering, pages, {}, statement)


def roman(text: str) -> int | None:
    """The value of a roman numeral up to 399 in either case, or None."""
    text = text.lower()
    if not text or not _ROMAN.fullmatch(text):
        return None
    values = [_ROMAN_VALUES[letter] for letter in text]
    return sum(-a if a < b else a for a, b in zip(values, [*values[1:], 0], strict=True))


def _ranges(match: re.Match[str]) -> Iterator[tuple[str, str]]:
    if match["between"]:
        first, last = re.findall(_LABEL, match["items"])
        yield _digits(first), _digits(last)
        return
    for item in re.finditer(_RANGE, match["items"]):
        ends = re.findall(_LABEL, item.group())
        yield _digits(ends[0]), _digits(ends[-1])


def _digits(label: str) -> str:
    """A number that is written out in digits: "twenty-one" → "21"; another label as it is."""
    words = re.split("[- ]", label.lower())
    return str(sum(_WRITTEN[word] for word in words)) if words[0] in _WRITTEN else label


def _end_pages(match: re.Match[str]) -> tuple[str, str]:
    count = _digits(match["count"] or "1")
    return ("1", count) if match["end"].lower() == "first" else (f"-{count}", "-1")


def _bounds(first: str, last: str) -> tuple[int, int] | None:
    """A range of numbers; "112–15" means 112–115, and one the wrong way round is turned."""
    if not (first.isdecimal() and last.isdecimal()):
        return None
    low, high = int(first), int(last)
    if high < low and len(last) < len(first):
        high = max(high, int(first[: -len(last)] + last))
    return min(low, high), max(low, high)


def _without(question: str, found: list[re.Match[str]]) -> str:
    for match in reversed(found):
        question = f"{question[: match.start()]} {question[match.end() :]}"
    return _SPACES.sub(" ", question).strip()


def _key(label: str) -> str:
    """A label as it is compared: case and leading zeros do not count."""
    return str(int(label)) if label.isdecimal() else label.casefold()


def _printed(contents: Contents, ranges: Sequence[tuple[str, str]]) -> tuple[int, ...]:
    """Physical numbers of the pages whose labels are in the ranges, both ends included."""
    numbers: dict[str, list[int]] = {}
    for number, label in enumerate(contents.labels, 1):
        numbers.setdefault(_key(label), []).append(number)
    found: set[int] = set()
    for first, last in ranges:
        if first == last and _key(first) not in numbers and "-" in first:
            first, last = first.split("-")  # "ii-2" is no label here
        if first == last:
            found.update(numbers.get(_key(first), ()))
        elif one := numbers.get(_key(f"{first}-{last}")):  # "3-12", a page of chapter 3
            found.update(one)
        elif bounds := _bounds(first, last):
            decimal = ((int(key), at) for key, at in numbers.items() if key.isdecimal())
            found.update(n for value, at in decimal if bounds[0] <= value <= bounds[1] for n in at)
        elif (low_at := numbers.get(_key(first))) and (high_at := numbers.get(_key(last))):
            low, high = sorted((low_at[0], high_at[-1]))
            found.update(range(low, high + 1))
    return tuple(sorted(found))


def _physical(contents: Contents, ranges: Sequence[tuple[str, str]]) -> tuple[int, ...]:
    found: set[int] = set()
    count = len(contents.labels)
    for first, last in ranges:
        if last == "-1":
            found.update(range(max(1, count + 1 + int(first)), count + 1))
        elif bounds := _bounds(first, last):
            found.update(range(max(1, bounds[0]), min(bounds[1], count) + 1))
    return tuple(sorted(found))


def _stated(contents: Contents, pages: tuple[int, ...], numbering: str, named: bool) -> str:
    """ "page 47 as printed, page 53 of bash.pdf"."""
    file = contents.name if named else "the file"
    labels = [contents.labels[number - 1] for number in pages]
    physical = _list([str(number) for number in pages], pages)
    word = "page" if len(pages) == 1 else "pages"
    if labels == [str(number) for number in pages]:
        return f"{word} {physical}" + (f" of {file}" if named else "")
    printed = _list(labels, pages)
    if numbering == "printed":
        return f"{word} {printed} as printed, {physical} of {file}"
    return f"{word} {physical} of {file}, printed {printed}"


def _list(names: list[str], pages: tuple[int, ...]) -> str:
    """Names of pages, those in an unbroken row as "12–15"."""
    runs: list[list[int]] = []
    for index, number in enumerate(pages):
        if runs and pages[runs[-1][-1]] == number - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    shown = [names[r[0]] if len(r) == 1 else f"{names[r[0]]}–{names[r[-1]]}" for r in runs]
    return ", ".join(shown)


def _no_pages(reference: Reference, documents: Sequence[Contents]) -> str:
    wanted = ", ".join(a if a == b else f"{a}–{b}" for a, b in reference.ranges)
    single = len(reference.ranges) == 1 and reference.ranges[0][0] == reference.ranges[0][1]
    has = []
    for contents in documents:
        labels = contents.labels
        count = f"{len(labels)} page{'s' if len(labels) != 1 else ''}"
        if labels and list(labels) != [str(n) for n in range(1, len(labels) + 1)]:
            count += f", printed {labels[0]} to {labels[-1]}"
        has.append(f"{contents.name} has {count}")
    forced = f"{reference.numbering} " if reference.numbering else ""
    word = "page" if single else "pages"
    verb = "is" if single else "are"
    return f"there {verb} no {forced}{word} {wanted}: {'; '.join(has) or 'there is no document'}"


def _resolve_sections(reference: Reference, documents: Sequence[Contents]) -> Filter:
    wanted = [number for number, _ in reference.ranges]
    sections: dict[str, tuple[str, ...]] = {}
    stated = []
    for contents in documents:
        titles: dict[str, str] = {}
        for number, title in contents.sections:
            titles.setdefault(number.casefold(), title)
        found = [key for number in wanted if (key := _section_key(number, titles)) is not None]
        if not found:
            continue
        sections[contents.document] = tuple(dict.fromkeys(found))
        shown = [f"{number.upper()} {titles.get(number, '')}".strip() for number in found]
        of = f" of {contents.name}" if len(documents) > 1 else ""
        stated.append(f"section {', '.join(shown)}{of}")
    statement = "; ".join(stated)
    if not sections:
        has = [f"{c.name} has {_top_sections(c)}" for c in documents]
        word = "section" if len(wanted) == 1 else "sections"
        verb = "is" if len(wanted) == 1 else "are"
        statement = (
            f"there {verb} no {word} {', '.join(wanted)}: "
            f"{'; '.join(has) or 'there is no document'}"
        )
    return Filter("section", "", {}, sections, statement)


def _section_key(number: str, titles: dict[str, str]) -> str | None:
    """The number as the document has it; a roman one also as a decimal one; None: it has none."""
    choices = [number.casefold()]
    if (value := roman(number)) is not None:
        choices.append(str(value))
    for choice in choices:
        if choice in titles or any(known.startswith(f"{choice}.") for known in titles):
            return choice
    return None


def _top_sections(contents: Contents) -> str:
    tops = list(dict.fromkeys(number.split(".")[0] for number, _ in contents.sections))
    if not tops:
        return "no numbered sections"
    return f"chapter {tops[0]}" if len(tops) == 1 else f"chapters {tops[0]} to {tops[-1]}"
