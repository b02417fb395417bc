"""A question and its answer as one HTML file: the pages, the quoted sentences, the attention."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...runtime.errors import InputError
from ..page_file import page_policy, write_page_file
from .attribution import CAVEAT, REST, SentenceAttention
from .marks import Support
from .passages import Passage
from .result import Names, Result

_PAGE_WIDTH = 1000  # pixels of a page's picture
_COLOURS = 6  # of passages, then they come again
_OTHER_COLOURS = ("other1", "other2", "other3")
RULES = {
    "quoted": "The sentence stands there word for word.",
    "words": "{:.0%} of the sentence's content words stand there.",
    "meaning": "The sentence says nearly the same: cosine {:.2f}.",
}


def write_report(result: Result, path: Path) -> None:
    """Write the report to `path`, whole or not at all. Raises InputError when that cannot be."""
    write_page_file(path, render_report(result).encode("utf-8", "replace"))


def render_report(result: Result) -> str:
    """The report's HTML; its policy lets the browser fetch nothing and run but its own script."""
    from jinja2 import Environment
    from markupsafe import Markup

    folder = files(__package__) / "report_page"
    script, style = ((folder / name).read_text("utf-8") for name in ("script.js", "style.css"))
    environment = Environment(autoescape=True, trim_blocks=True)
    template = environment.from_string((folder / "page.html").read_text("utf-8"))
    values = _values(result) | {"policy": Markup(page_policy(script, style))}
    return template.render(values, script=Markup(script), style=Markup(style))


def _values(result: Result) -> dict[str, Any]:
    names, answered, attribution = Names(result.documents), result.answered, result.attribution
    supports = _supports(result)
    values: dict[str, Any] = {
        "question": result.question,
        "files": ", ".join(names.files),
        "several": len(result.documents) > 1,
        "model": result.model,
        "backend": result.backend,
        "filter": result.found.filter.statement if result.found.filter else "",
        "not_found": result.not_found,
        "not_attributed": result.not_attributed,
        "contrast": result.contrast,
        "caveat": CAVEAT,
        "pages": _pages(result, names, supports),
        "passages": _passages(result, names, supports),
        "has_attention": attribution is not None,
    }
    if answered is not None:
        parts, rest = _parts(result, names, supports)
        values |= {"parts": parts, "rest": rest, "without_source": result.without_source}
    if attribution is not None:
        shown = [
            (names.place(passage), _colour(index))
            for index, passage in enumerate(answered.passages)
        ]
        legend = [f"{number}. {name}" for number, (name, _) in enumerate(shown, 1)]
        colours = [colour for _, colour in shown]
        values |= {
            "layers": f"{attribution.layers[0]} to {attribution.layers[-1]}",
            "legend": [
                {"name": name, "colour": colour}
                for name, colour in [
                    *zip(legend, colours, strict=True),
                    *zip(REST, _OTHER_COLOURS, strict=True),
                ]
            ],
            "bars": [
                _bar(sentence.text, shares, colours)
                for sentence, shares in zip(answered.sentences, attribution.sentences, strict=True)
            ],
        }
    return values


def _supports(result: Result) -> list[Support]:
    """Each source once, in the order of the answer."""
    sentences = result.answered.sentences if result.answered else ()
    return list(dict.fromkeys(sentence.support for sentence in sentences if sentence.support))


def _parts(
    result: Result, names: Names, supports: Sequence[Support]
) -> tuple[list[dict[str, Any]], str]:
    """The answer's sentences with the text before each, and the text after the last."""
    answered, at, parts = result.answered, 0, []
    for sentence in answered.sentences:
        begin = answered.text.find(sentence.text, at)
        support = sentence.support
        parts.append(
            {
                "before": answered.text[at:begin],
                "text": sentence.text,
                "source": supports.index(support) + 1 if support else None,
                "mark": names.mark(answered.passages[support.passage])[1:-1] if support else "",
            }
        )
        at = begin + len(sentence.text)
    return parts, answered.text[at:]


def _pages(result: Result, names: Names, supports: Sequence[Support]) -> list[dict[str, Any]]:
    """The pages that are quoted, each with its quotations and its picture."""
    pages: dict[tuple[str, int], dict[str, Any]] = {}
    for number, support in enumerate(supports, 1):
        passage = result.answered.passages[support.passage]
        key = (passage.document, passage.page)
        if key not in pages:
            pages[key] = {"place": names.place(passage), "quotes": []} | _picture(result, passage)
        pages[key]["quotes"].append(
            {
                "number": number,
                "text": support.quote,
                "rule": RULES[support.rule].format(support.score),
                "boxes": _boxes(pages[key].get("path"), passage.page, support.quote),
            }
        )
    return list(pages.values())


def _picture(result: Result, passage: Passage) -> dict[str, Any]:
    """The page as a PNG; nothing for a file without pictures of pages."""
    from .page_image import render_page

    path = next((d.path for d in result.documents if d.sha256 == passage.document), None)
    if path is None or not _is_pdf(path):
        return {}
    try:
        image = render_page(path, passage.page, _PAGE_WIDTH)
    except InputError:  # the file has changed since it was read
        return {}
    width, height = (int.from_bytes(image[at : at + 4], "big") for at in (16, 20))  # of a PNG
    encoded = b64encode(image).decode("ascii")
    return {"path": path, "image": encoded, "width": width, "height": height}


def _boxes(path: Path | None, page: int, quote: str) -> list[dict[str, float]]:
    """Where the quotation stands on the picture, in fractions of it."""
    from .page_image import locate

    return [
        {
            "left": round(box.left, 4),
            "top": round(box.top, 4),
            "width": round(box.right - box.left, 4),
            "height": round(box.bottom - box.top, 4),
        }
        for box in (locate(path, page, quote) if path else ())
    ]


def _is_pdf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return b"%PDF-" in file.read(1024)
    except OSError:
        return False


def _passages(result: Result, names: Names, supports: Sequence[Support]) -> list[dict[str, Any]]:
    answered = result.answered
    passages = answered.passages if answered else [hit.passage for hit in result.found.hits]
    attention = result.attribution.mean.passages if result.attribution else ()
    return [
        {
            "place": names.place(passage),
            "colour": _colour(index),
            "similarity": _figure(hit.similarity, ".2f"),
            "bm25": _figure(hit.bm25, ".1f"),
            "attention": f"{attention[index]:.1%}" if attention else "",
            "pieces": list(_pieces(passage.text, index, supports)),
        }
        for index, (passage, hit) in enumerate(zip(passages, result.found.hits, strict=False))
    ]


def _pieces(text: str, index: int, supports: Sequence[Support]) -> Iterator[dict[str, Any]]:
    """The passage's text, cut where quotations begin and end."""
    spans = sorted((one.start, one.end) for one in supports if one.passage == index)
    at = 0
    for start, end in spans:
        if end <= at:
            continue
        yield {"text": text[at : max(start, at)], "quoted": False}
        yield {"text": text[max(start, at) : end], "quoted": True}
        at = end
    yield {"text": text[at:], "quoted": False}


def _bar(text: str, shares: SentenceAttention, colours: Sequence[str]) -> dict[str, Any]:
    values = [
        *(
            (f"passage {n}", v, c)
            for n, (v, c) in enumerate(zip(shares.passages, colours, strict=True), 1)
        ),
        *zip(REST, shares.rest, _OTHER_COLOURS, strict=True),
    ]
    parts, x = [], 0.0
    for name, value, colour in values:
        width = round(1000 * value, 1)
        title = f"{name}: {value:.1%}"
        parts.append({"x": round(x, 1), "width": width, "colour": colour, "title": title})
        x += width
    return {"text": text, "parts": parts, "spoken": ", ".join(part["title"] for part in parts)}


def _colour(index: int) -> str:
    return f"p{index % _COLOURS + 1}"


def _figure(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
