"""Documents: sent, searched, quoted, and gone; and what is no document."""

import io
import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from fpdf import FPDF
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pippin.apps.models import Model
from pippin.apps.serve import document_store
from pippin.apps.serve.document_store import safe_name
from pippin.runtime.errors import InputError
from support.documents import small_pdf
from support.fake_embedder import FakeEmbedder
from support.serving import Served, serving, wait_until

COPROCESS = "A coprocess is a shell command that is preceded by the coproc reserved word."
ARRAYS = "Arrays are indexed from zero."
BOOK = small_pdf([[(40, 50, COPROCESS)], [(40, 50, ARRAYS)]])
BYTES = {"content-type": "application/octet-stream"}
QUESTION = "What is a coprocess?"


@pytest.fixture
def served(tiny: Model) -> Iterator[Served]:
    with serving(tiny, fetch=False, context=1024) as served:
        served.service.documents._load = lambda stages: FakeEmbedder()
        yield served


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=60) as client:
        yield client


def put(http: httpx.Client, data: bytes = BOOK, name: str = "book.pdf") -> httpx.Response:
    return http.post("/pippin/documents", params={"name": name}, content=data, headers=BYTES)


def passages(http: httpx.Client, *ids: str, **fields: Any) -> httpx.Response:
    body = {"documents": list(ids), "question": QUESTION} | fields
    return http.post("/pippin/passages", json=body)


def test_a_question_and_its_sources(http: httpx.Client) -> None:
    document = put(http).json()
    assert {key: document[key] for key in ("name", "pages", "warnings")} == {
        "name": "book.pdf",
        "pages": 2,
        "warnings": [],
    }
    question = "Which reserved word is a shell command coprocess preceded by?"
    found = passages(http, document["id"], question=question, messages=[]).json()
    assert found["missing"] == ""
    best = found["passages"][0]
    assert (best["document"], best["page"], best["text"]) == (document["id"], 1, COPROCESS)
    assert found["content"].endswith(question)
    assert COPROCESS in found["content"]
    reply = f"{COPROCESS[:-1]} [p. 2]. It is blue and rather large."
    asked = {"documents": [document["id"]], "question": question, "reply": reply}
    checked = http.post("/pippin/sources", json=asked | {"passages": found["passages"]}).json()
    # the model's own mark, which is wrong, is gone, and the right one is told
    assert "".join(part["text"] for part in checked["parts"]) == (
        f"{COPROCESS} It is blue and rather large."
    )
    assert [part["source"] for part in checked["parts"]] == [0, None]
    (source,) = checked["sources"]
    assert (source["mark"], source["page"], source["quote"]) == ("[p. 1]", 1, COPROCESS)
    assert (checked["sentences"], checked["without_source"]) == (2, 1)
    assert checked["nearest"][0]["text"] == COPROCESS
    (box,) = source["boxes"]
    image = Image.open(io.BytesIO(picture(http, document["id"], 1).content)).convert("L")
    width, height = image.size
    sides = (box["left"] * width, box["top"] * height, box["right"] * width, box["bottom"] * height)
    inside = image.crop(tuple(map(round, sides)))
    assert inside.getextrema()[0] < 128  # there is ink in it
    assert image.getbbox() == (0, 0, width, height)


def picture(http: httpx.Client, id: str, number: int, **params: Any) -> httpx.Response:
    return http.get(f"/pippin/documents/{id}/pages/{number}.png", params=params)


def test_a_page_that_is_named_and_one_that_is_not_there(http: httpx.Client) -> None:
    id = put(http).json()["id"]
    named = passages(http, id, question="What does page 2 say?").json()
    assert named["searched"] == "page 2"
    assert [one["text"] for one in named["passages"]] == [ARRAYS]
    gone = passages(http, id, question="What does page 9 say?").json()
    assert "there is no page 9" in gone["missing"]
    assert (gone["content"], gone["passages"]) == (None, [])


def test_nothing_comes_near(http: httpx.Client) -> None:
    id = put(http).json()["id"]
    missing = passages(http, id, question="sourdough bakery Stockholm").json()
    assert missing["missing"] == "no passage comes near it"


def test_without_an_encoder_words_alone_are_searched(tiny: Model) -> None:
    def fails(stages: Any) -> Any:
        raise InputError("minilm is not here; pull it")

    with serving(tiny) as served, httpx.Client(base_url=served.url, timeout=60) as http:
        served.service.documents._load = fails
        document = put(http).json()
        assert "by words alone: minilm is not here" in document["warnings"][0]
        found = passages(http, document["id"]).json()
        assert found["missing"] == ""
        assert found["note"] == document["warnings"][0]
        assert found["passages"][0]["text"] == COPROCESS
        none = passages(http, document["id"], question="sourdough").json()
        assert none["missing"] == "no passage comes near it"


def test_as_many_passages_as_fit(http: httpx.Client, served: Served) -> None:
    text = "\n\n".join(f"Shell command number {n}. " + "word " * 60 for n in range(40))
    id = put(http, text.encode(), "long.txt").json()["id"]
    few = passages(http, id, question="shell command word", top=20).json()
    generator = served.service.model.generator
    tokens = generator.encode([{"role": "user", "content": few["content"]}])
    assert len(tokens) + 256 <= 1024
    assert 0 < len(few["passages"]) < 20
    before = [{"role": "user", "content": "x" * 700}, {"role": "assistant", "content": "y"}]
    none = passages(http, id, question="shell command word", messages=before)
    assert none.status_code == 400
    assert none.json()["error"]["code"] == "context_length_exceeded"


def encrypted() -> bytes:
    pdf = FPDF()
    pdf.set_font("Helvetica", size=12)
    pdf.add_page()
    pdf.text(20, 20, "secret")
    pdf.set_encryption("owner", "user")
    return bytes(pdf.output())


@pytest.mark.parametrize(
    ("data", "name", "says"),
    [
        (encrypted(), "locked.pdf", "locked.pdf is encrypted"),
        (BOOK[:200], "half.pdf", "half.pdf is damaged"),
        (b"", "nothing.txt", "nothing.txt is empty"),
        (b"\x89PNG\r\n\x1a\n", "cat.png", "cat.png is a picture"),
        (b"caf\xe9", "x.txt", "x.txt is no UTF-8 text"),
        (b"plain", "no.pdf", "no.pdf is no PDF"),
        (encrypted(), "../../etc/pass\nwd.pdf", "pass_wd.pdf is encrypted"),
    ],
    ids=["encrypted", "damaged", "empty", "picture", "not text", "no pdf", "path"],
)
def test_files_that_cannot_be_read(
    http: httpx.Client, served: Served, data: bytes, name: str, says: str
) -> None:
    answer = put(http, data, name)
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert message.startswith(says)
    assert "pippin-documents" not in message
    assert "\n" not in message
    place = served.service.documents._place
    assert [entry for entry in place.iterdir() if entry.is_dir()] == []


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("thesis.pdf", "thesis.pdf"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\me\\notes.md", "notes.md"),
        ("..", "document"),
        (".hidden", "hidden"),
        ("a/b/", "document"),
        ("x" * 300 + ".pdf", "x" * 47 + ".pdf"),
        ("naïve größe.txt", "naïve größe.txt"),
        ("a\0b\n.txt", "a_b_.txt"),
        ("<script>.html", "_script_.html"),
        ("README", "README"),
    ],
)
def test_names_are_labels(name: str, kept: str) -> None:
    found = safe_name(name)
    assert found == kept
    assert len(found.encode()) <= 255


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("passages", {"documents": ["nothing"], "question": "Hi"}, 404, "attach it again"),
        ("passages", {"documents": [], "question": "Hi"}, 400, "at least one"),
        ("passages", {"documents": [5], "question": "Hi"}, 400, "a list of ids"),
        ("passages", {"documents": "id", "question": "Hi"}, 400, "expected a list"),
        ("passages", {"documents": ["x"] * 40, "question": "Hi"}, 400, "at most"),
        ("passages", {"question": "Hi"}, 400, "documents: is missing"),
        ("passages", {"documents": ["ID"], "question": " "}, 400, "question: is empty"),
        ("passages", {"documents": ["ID"], "question": "x" * 9000}, 400, "characters"),
        ("passages", {"documents": ["ID"], "question": "a", "mode": 1}, 400, "mode: is not"),
        ("passages", {"documents": ["ID"], "question": "a", "top": 99}, 400, "top: is 99"),
        ("sources", {"documents": ["ID"], "question": "a", "reply": "b"}, 400, "passages: is"),
        (
            "sources",
            {"documents": ["ID"], "question": "a", "reply": "b", "passages": [{"page": 1}]},
            400,
            "passages[0].document: is missing",
        ),
        (
            "sources",
            {
                "documents": ["ID"],
                "question": "a",
                "reply": "b",
                "passages": [{"document": "ID", "page": 3, "start": 0, "end": 5}],
            },
            400,
            "page: is 3, expected 1 to 2",
        ),
    ],
)
def test_faults(http: httpx.Client, path: str, body: dict, status: int, says: str) -> None:
    id = put(http).json()["id"]
    text = httpx.Request("POST", "http://x", json=body).content.replace(b'"ID"', f'"{id}"'.encode())
    answer = http.post(
        f"/pippin/{path}", content=text, headers={"content-type": "application/json"}
    )
    assert answer.status_code == status, answer.text
    assert says in answer.json()["error"]["message"]


def test_a_passage_is_the_servers_own_text(http: httpx.Client) -> None:
    """What a client says that a page says bears out nothing."""
    id = put(http).json()["id"]
    lie = "The shell was written by a committee of seven otters."
    where = {"document": id, "page": 1, "start": 0, "end": len(lie), "text": lie}
    body = {"documents": [id], "question": "Who?", "passages": [where], "reply": lie}
    checked = http.post("/pippin/sources", json=body).json()
    assert checked["sources"] == []
    assert checked["without_source"] == 1


def test_pictures_that_are_not_there(http: httpx.Client) -> None:
    id = put(http).json()["id"]
    text = put(http, b"Some text.", "notes.txt").json()["id"]
    assert picture(http, id, 2, width=50).headers["content-type"] == "image/png"
    assert picture(http, id, 3).status_code == 404
    assert picture(http, id, 0).status_code == 404
    assert picture(http, text, 1).status_code == 404
    assert picture(http, "x", 1).status_code == 404
    for width in (0, 5000, "wide", "9" * 50):
        assert picture(http, id, 1, width=width).status_code == 400


def test_removed_documents_are_gone(http: httpx.Client, served: Served) -> None:
    first, second = put(http).json()["id"], put(http, name="same.pdf").json()["id"]
    assert http.delete(f"/pippin/documents/{first}").json() == {"id": first, "deleted": True}
    assert http.delete(f"/pippin/documents/{first}").status_code == 404
    assert picture(http, first, 1).status_code == 404
    assert picture(http, second, 1).status_code == 200  # the same content, sent twice
    assert passages(http, second, question="What does page 1 say?").json()["passages"]
    folders = [p for p in served.service.documents._place.iterdir() if p.is_dir()]
    assert [folder.name for folder in folders] == [second]


def test_the_oldest_make_room(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_store, "MAX_DOCUMENTS", 2)
    first, second = (put(http, f"Text {n}.".encode(), f"{n}.txt").json()["id"] for n in range(2))
    passages(http, first)  # used later than the second
    third = put(http, b"Text 3.", "3.txt").json()["id"]
    statuses = [passages(http, id).status_code for id in (first, second, third)]
    assert statuses == [200, 404, 200]


def test_limits(http: httpx.Client, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_store, "MAX_PAGES", 1)
    answer = put(http)
    assert (answer.status_code, "has 2 pages" in answer.text) == (400, True)
    answer = http.post("/pippin/documents?name=a.txt", content=b"x")
    assert answer.status_code == 415
    answer = http.post("/pippin/documents", content=b"x", headers=BYTES)
    assert "name: is missing" in answer.json()["error"]["message"]
    answer = http.post("/pippin/documents?name=a&path=b", content=b"x", headers=BYTES)
    assert "path: is not supported" in answer.json()["error"]["message"]
    connection = HTTPConnection("127.0.0.1", served.port, timeout=60)
    connection.putrequest("POST", "/pippin/documents?name=a.txt")
    for name, value in (BYTES | {"content-length": document_store.MAX_BYTES + 1}).items():
        connection.putheader(name, str(value))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    # beyond what a JSON request may have, and not beyond what a file may
    large = b"<!doctype html><!-- %b --><p>A word.</p>" % bytes(b"x" * (9 << 20))
    assert put(http, large, "large.html").status_code == 200


def test_a_client_that_goes_away_ends_the_reading(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    def slowly(path: Path, check: Any) -> Any:
        try:
            while not threading.Event().wait(0.01):
                check()
        finally:
            ended.append(path)

    monkeypatch.setattr(served.service.documents, "add", slowly)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{served.url}/pippin/documents?name=a.txt", content=b"x", headers=BYTES, timeout=0.3
        )
    wait_until(lambda: ended)
    wait_until(lambda: not ended[0].parent.exists())


def test_keys_origins_and_the_end(tiny: Model) -> None:
    with serving(tiny, api_key="s3cret", origins=("https://a.example",)) as served:
        served.service.documents._load = lambda stages: FakeEmbedder()
        with httpx.Client(base_url=served.url, timeout=60) as http:
            assert put(http).status_code == 401
            http.headers["authorization"] = "Bearer s3cret"
            id = put(http).json()["id"]
            bare = {"authorization": ""}
            assert http.get(f"/pippin/documents/{id}/pages/1.png", headers=bare).status_code == 401
            assert http.delete(f"/pippin/documents/{id}", headers=bare).status_code == 401
            other = http.get("/health", headers={"origin": "https://b.example"})
            assert other.status_code == 403
            asked = {"access-control-request-method": "DELETE", "origin": "https://a.example"}
            assert http.options(f"/pippin/documents/{id}", headers=asked).status_code == 200
        place = served.service.documents._place
        assert place.exists()
    assert not place.exists()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["document", "page", "start", "end", "role"]), inner)
    ),
    max_leaves=8,
)
FIELDS = ("documents", "question", "messages", "passages", "reply", "top", "max_tokens", "layer")


@given(
    path=st.sampled_from(["passages", "sources", "explain"]),
    changes=st.dictionaries(st.sampled_from([*FIELDS, "token", "model"]), JSON, max_size=4),
)
@settings(max_examples=80, deadline=None)
def test_any_json(fuzzed: tuple[httpx.Client, str], path: str, changes: dict[str, Any]) -> None:
    http, id = fuzzed
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    where = {"document": id, "page": 1, "start": 0, "end": 9}
    asked = {"documents": [id], "question": QUESTION}
    bodies = {
        "passages": asked,
        "sources": asked | {"passages": [where], "reply": COPROCESS},
        "explain": {"model": "tiny", "messages": turns},
    }
    body = json.dumps(bodies[path] | changes)
    kind = {"content-type": "application/json"}
    answer = http.post(f"/pippin/{path}", content=body, headers=kind)
    assert answer.status_code < 500, answer.text
    assert answer.status_code == 200 or "\n" not in answer.json()["error"]["message"]


@pytest.fixture(scope="module")
def fuzzed(tiny: Model) -> Iterator[tuple[httpx.Client, str]]:
    with serving(tiny) as served, httpx.Client(base_url=served.url, timeout=60) as client:
        served.service.documents._load = lambda stages: FakeEmbedder()
        yield client, put(client).json()["id"]
