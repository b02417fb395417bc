"""Documents that a conversation is about: sent, searched for passages, and quoted.

POST /pippin/documents?name=thesis.pdf     the file's bytes
POST /pippin/passages                      a question → passages, and the message to send
POST /pippin/sources                       the reply → its sentences with checked sources
GET  /pippin/documents/ID/pages/47.png
DELETE /pippin/documents/ID
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from .chat_request import ChatRequest, Message, read_messages
from .document_store import DocumentStore, Held, discard, names_of
from .errors import ApiError
from .fields import Fields, objects
from .service import Service, json_response
from .sse import unless_gone
from .structure import render

if TYPE_CHECKING:
    from ..documents.marks import Support
    from ..documents.passages import Hit, Passage
    from ..documents.result import Names

_TOP = 5  # passages of a question
_MOST_TOP = 20
_REPLY = 256  # tokens that passages leave room for, unless the request says more
_MOST_ASKED = 16  # documents of a question
_NEAREST = 3  # sentences that are quoted where an answer has none for itself
_PAGE_WIDTH = 1000  # pixels of a page's picture
_WIDEST = 2000
_QUESTION = 8_000  # characters
_CHECKED = 32_000  # characters of a reply, whose sentences are all compared with each other


async def upload(service: Service, request: Request) -> Response:
    """Take a document in: its id, title, pages, and what the user should know."""
    query = request.query_params
    if unknown := set(query) - {"name"}:
        raise ApiError(400, f"{min(unknown)}: is not supported here", param=min(unknown))
    name = query.get("name", "")
    if not name.strip():
        raise ApiError(400, "name: is missing; give the file's name as ?name=", param="name")
    store = service.documents
    with service.reading.place():
        path = store.new_file(name)
        try:
            with path.open("wb") as file:
                async for part in request.stream():
                    file.write(part)
            work = service.reading.run(request, lambda check: store.add(path, check))
            held, warnings = await work
        except BaseException:
            discard(path)
            raise
    return json_response(
        {
            "id": held.id,
            "name": held.path.name,
            "title": held.document.title,
            "pages": len(held.document.pages),
            "warnings": warnings,
        }
    )


async def remove(service: Service, request: Request) -> Response:
    """Let a document go."""
    await service.in_worker(service.documents.remove, request.path_params["id"])
    return json_response({"id": request.path_params["id"], "deleted": True})


async def page_picture(service: Service, request: Request) -> Response:
    """A page of a PDF as a PNG."""
    from ..documents.page_image import render_page

    width = request.query_params.get("width", str(_PAGE_WIDTH))
    if not (width.isascii() and width.isdigit() and 1 <= int(width[:6]) <= _WIDEST):
        raise ApiError(400, f"width: is {width!r:.20}, expected 1 to {_WIDEST}", param="width")
    held = service.documents.get(request.path_params["id"])
    number = request.path_params["number"]
    if not held.is_pdf or not 1 <= number <= len(held.document.pages):
        raise ApiError(404, f"there is no picture of page {number!r:.20} of {held.path.name}")
    image = await service.in_worker(render_page, held.path, number, int(width))
    headers = {"Cache-Control": "private, max-age=3600", "X-Content-Type-Options": "nosniff"}
    return Response(image, media_type="image/png", headers=headers)


@dataclass(frozen=True)
class _Question:
    held: list[Held]
    text: str
    before: list[Message]  # what was said before
    top: int
    reply: int  # tokens


async def passages(service: Service, request: Request, fields: Fields) -> Response:
    """The passages for a question, and the message that puts both before the model."""
    held = _read_held(service.documents, fields)
    text = _read_question(fields)
    if fields.peek("messages") == []:  # the question is the first one
        fields.ignore("messages")
    before = read_messages(fields) if fields.has("messages") else []
    asked = _Question(
        held,
        text,
        before,
        fields.integer("top", 1, _MOST_TOP) or _TOP,
        fields.integer("max_tokens", 1, 2**31) or _REPLY,
    )
    fields.done()
    found = await unless_gone(request.receive, service.in_worker(_find, service, asked))
    return json_response(found)


def _read_held(store: DocumentStore, fields: Fields) -> list[Held]:
    ids = fields.items("documents", required=True)
    if not ids or not all(isinstance(one, str) for one in ids):
        raise fields.bad("documents", "expected a list of ids, at least one")
    if len(ids) > _MOST_ASKED:
        raise fields.bad("documents", f"has {len(ids)} ids, at most {_MOST_ASKED} are asked")
    return [store.get(one) for one in dict.fromkeys(ids)]


def _read_question(fields: Fields) -> str:
    text = fields.text("question", required=True)
    if not text.strip():
        raise fields.bad("question", "is empty")
    if len(text) > _QUESTION:
        raise fields.bad("question", f"has {len(text):,} characters, at most {_QUESTION:,}")
    return text


def _find(service: Service, asked: _Question) -> dict[str, Any]:
    from ..documents.answer import missing, weigh
    from ..documents.prompt import write_message
    from ..documents.result import Names

    store = service.documents
    documents = names_of(asked.held)
    found = store.index().search(
        asked.text,
        asked.top,
        "hybrid" if store.embedder else "bm25",
        [document.sha256 for document in documents],
    )
    taken = found.filter
    answer: dict[str, Any] = {
        "searched": taken.statement if taken and not taken.empty else "",
        "missing": missing(found.hits, taken, weigh(asked.text, found.hits)),
        "note": store.without_embedder,
        "passages": [],
        "content": None,
    }
    # Words alone do not tell how near a passage comes.
    if not store.embedder and any(hit.bm25_rank for hit in found.hits):
        answer["missing"] = ""
    if answer["missing"]:
        return answer
    names = Names(documents)
    hits = list(found.hits)
    tokenizer = service.model.generator.tokenizer

    def content() -> str:
        return write_message(tokenizer, asked.text, [hit.passage for hit in hits])

    if not _fits(service, asked, asked.text):  # nothing else would
        hits.clear()
    while hits and not _fits(service, asked, content()):
        hits.pop()
    if not hits:
        raise ApiError(
            400,
            f"the server's context of {service.scheduler.capacity} tokens has no room for a "
            f"passage beside the conversation and {asked.reply} tokens of reply",
            code="context_length_exceeded",
        )
    ids = {one.document.sha256: one.id for one in asked.held}
    found_passages = [_passage(ids, names, hit) for hit in hits]
    return answer | {"content": content(), "passages": found_passages}


def _passage(ids: dict[str, str], names: "Names", hit: "Hit") -> dict[str, Any]:
    passage = hit.passage
    return {
        "document": ids[passage.document],
        "page": passage.page,
        "label": passage.label,
        "section": passage.section,
        "start": passage.start,
        "end": passage.end,
        "place": names.place(passage),
        "text": passage.text,
        "similarity": hit.similarity,
        "bm25": hit.bm25,
    }


def _fits(service: Service, asked: _Question, content: str) -> bool:
    turn = {"role": "user", "content": content}
    prompt = render(service.model.generator, ChatRequest(None, [*asked.before, turn], {}))
    return len(prompt.tokens) + asked.reply <= service.scheduler.capacity


async def sources(service: Service, request: Request, fields: Fields) -> Response:
    """The reply without the marks that the model wrote, and the sources that bear it out."""
    store = service.documents
    held = _read_held(store, fields)
    question = _read_question(fields)
    given = objects(fields.items("passages", required=True), fields.name("passages"))
    if len(given) > _MOST_TOP:
        raise fields.bad("passages", f"has {len(given)}, at most {_MOST_TOP} are looked at")
    chosen = [_read_passage(one, held) for one in given]
    reply = fields.text("reply", required=True)
    if len(reply) > _CHECKED:
        raise fields.bad("reply", f"has {len(reply):,} characters, at most {_CHECKED:,}")
    fields.done()
    work = service.in_worker(_check, store, held, question, chosen, reply)
    return json_response(await unless_gone(request.receive, work))


def _read_passage(fields: Fields, held: list[Held]) -> tuple[Held, dict[str, Any]]:
    """The document of a passage and where it is: its text is the server's own."""
    id = fields.text("document", required=True)
    document = next((one for one in held if one.id == id), None)
    if document is None:
        raise fields.bad("document", "is none of the request's documents")
    pages = len(document.document.pages)
    where = {"page": fields.integer("page", 1, pages, required=True)}
    where |= {name: fields.integer(name, 0, 2**31, required=True) for name in ("start", "end")}
    where["section"] = fields.text("section", "")
    # what `passages` tells beside it
    fields.ignore("label", "place", "text", "similarity", "bm25")
    fields.done()
    return document, where


def _check(
    store: DocumentStore,
    held: list[Held],
    question: str,
    chosen: list[tuple[Held, dict[str, Any]]],
    reply: str,
) -> dict[str, Any]:
    from ..documents.marks import Sources
    from ..documents.passages import Passage
    from ..documents.reader import AnswerReader, Sentence
    from ..documents.result import Names

    names = Names(names_of(held))
    texts = {one.id: store.text(one) for one, _ in chosen}
    passages, pages = [], []
    for one, where in chosen:
        page = texts[one.id].pages[where["page"] - 1]
        text = page.text[where["start"] : where["end"]]
        sha256, name = one.document.sha256, one.path.name
        passages.append(Passage(sha256, name, page.number, page.label, text=text, **_span(where)))
        pages.append(page.text)
    checked = Sources(passages, pages, store.embedder)
    parts: list[dict[str, Any]] = []
    supports: list[Support] = []
    text, counted, without = "", 0, 0
    for piece in AnswerReader(checked).feed(reply, 0, last=True):
        if not isinstance(piece, Sentence):
            text += piece
            continue
        counted += 1
        support = piece.support
        if support is None:
            without += 1
        elif support not in supports:
            supports.append(support)
        parts.append({"text": text, "source": supports.index(support) if support else None})
        text = ""
    if text:
        parts.append({"text": text, "source": None})
    nearest = checked.nearest(question) if without or not counted else []
    return {
        "parts": parts,
        "sentences": counted,
        "without_source": without,
        "sources": [_source(names, chosen, passages, one) for one in supports],
        "nearest": [
            {"place": names.place(passage), "text": sentence}
            for passage, sentence in list(zip(passages, nearest, strict=False))[:_NEAREST]
            if sentence
        ],
    }


def _span(where: dict[str, Any]) -> dict[str, Any]:
    return {name: where[name] for name in ("section", "start", "end")}


def _source(
    names: "Names",
    chosen: list[tuple[Held, dict[str, Any]]],
    passages: list["Passage"],
    support: "Support",
) -> dict[str, Any]:
    from ..documents.report import RULES

    passage, held = passages[support.passage], chosen[support.passage][0]
    return {
        "mark": names.mark(passage),
        "place": names.place(passage),
        "quote": support.quote,
        "rule": RULES[support.rule].format(support.score),
        "document": held.id,
        "page": passage.page,
        "picture": held.is_pdf,
        "boxes": _boxes(held.path, passage.page, support.quote) if held.is_pdf else [],
    }


def _boxes(path: Path, page: int, quote: str) -> list[dict[str, float]]:
    """Where the quotation stands on the page, in fractions of it."""
    from ..documents.page_image import locate

    return [
        {side: round(getattr(box, side), 4) for side in ("left", "top", "right", "bottom")}
        for box in locate(path, page, quote)
    ]
