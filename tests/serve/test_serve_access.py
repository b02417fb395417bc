"""Who may call, how much may be sent, and what the answers look like that are none."""

import json
import time
from collections.abc import Iterator

import httpx2 as httpx
import pytest

from pippin.apps.models import Model
from support.serving import Served, fake_model, serving

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


@pytest.fixture
def http(tiny_server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=tiny_server.url) as client:
        yield client


def test_health_and_metrics(http: httpx.Client) -> None:
    answer = http.get("/health")
    assert (answer.status_code, answer.json()["status"]) == (200, "ok")
    before = samples(http.get("/metrics").text)
    assert http.post("/v1/chat/completions", json=BODY).status_code == 200
    assert http.post("/v1/chat/completions", json={}).status_code == 400
    after = samples(http.get("/metrics").text)
    path = 'pippin_requests_total{path="/v1/chat/completions",status="%d"}'
    assert after[path % 200] == before.get(path % 200, 0) + 1
    assert after[path % 400] == before.get(path % 400, 0) + 1
    assert after["pippin_reply_tokens_total"] == before["pippin_reply_tokens_total"] + 2
    assert after["pippin_slots"] == 4
    assert after["pippin_slots_busy"] == 0
    assert after["pippin_kv_cache_tokens"] > 0


def samples(text: str) -> dict[str, float]:
    """The samples of Prometheus' text format; what is not in the format fails."""
    found, types = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            types[name] = kind
        elif not line.startswith("# HELP "):
            name, _, value = line.rpartition(" ")
            assert name not in found
            found[name] = float(value)
            base = name.partition("{")[0]
            ends = ("_bucket", "_sum", "_count")
            stem = next((base.removesuffix(e) for e in ends if base.endswith(e)), base)
            assert stem in types or base in types
    for name, kind in types.items():
        if kind == "histogram":
            counts = [v for n, v in found.items() if n.startswith(f"{name}_bucket")]
            assert counts == sorted(counts)
            assert counts[-1] == found[f"{name}_count"]
    return found


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/nothing", 404, "openai"),
        ("GET", "/v1/chat/completions", 405, "openai"),
        ("GET", "/v1/messages", 405, "anthropic"),
        ("POST", "/v1/messages/other", 404, "anthropic"),
        ("DELETE", "/v1/models", 405, "openai"),
    ],
)
def test_what_is_not_there(http, method: str, path: str, status: int, kind: str) -> None:
    answer = http.request(method, path, json={} if method == "POST" else None)
    assert answer.status_code == status
    document = answer.json()
    assert ("type" in document) == (kind == "anthropic")
    assert document["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b'{"model": NaN}',
        b'{"model": "\xff"}',
        b'{"a":' * 100_000,
        b'{"model": ' + b"9" * 6000 + b"}",
        b'{"model":"tiny","messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"model":"tiny","messages":[{"role":"user","content":5}]}',
        b'{"model":"tiny","messages":{"role":"user"}}',
        b'{"model":"tiny","messages":[null]}',
        b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"temperature":1e999}',
        b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"seed":1e30}',
        b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"stop":[""]}',
        b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"stream":"yes"}',
        b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"n":true}',
    ],
    ids=lambda body: body[:24].decode("latin-1") + str(len(body)),
)
def test_bad_bodies_are_400(http: httpx.Client, body: bytes) -> None:
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"):
        answer = http.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400, answer.text
        message = answer.json()["error"]["message"]
        assert message
        assert "\n" not in message


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1},
        {"max_tokens": 2.0},
        {"stream": False, "stop": []},
        {"seed": None},
        {"chat_template_kwargs": {"self": 1, "a b": 2}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_harmless_spellings_are_taken(http: httpx.Client, fields: dict) -> None:
    assert http.post("/v1/chat/completions", json=BODY | fields).status_code == 200


def test_empty_stream_options_are_taken(http: httpx.Client) -> None:
    answer = http.post("/v1/chat/completions", json=BODY | {"stream": True, "stream_options": {}})
    assert answer.status_code == 200
    assert answer.text.endswith("data: [DONE]\n\n")
    assert answer.headers["content-type"].startswith("text/event-stream")


def test_half_of_a_surrogate_pair_is_refused_anywhere(http: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    for field, status in (("\\ud800", 400), ("\\ud83d\\ude00", 200)):
        text = json.dumps(BODY | {"metadata": {"a": "HERE"}}).replace("HERE", field)
        answer = http.post("/v1/chat/completions", content=text, headers=headers)
        assert answer.status_code == status


def test_only_json_is_taken(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", content=b"{}", headers={"content-type": "text/plain"})
    assert answer.status_code == 415


def test_the_key(tiny: Model) -> None:
    with serving(tiny, api_key="s3cret") as served, httpx.Client(base_url=served.url) as http:
        assert http.get("/health").status_code == 200
        for headers in ({}, {"authorization": "Bearer s3cre"}, {"x-api-key": "ключ".encode()}):
            answer = http.get("/v1/models", headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == "invalid_api_key"
        assert http.get("/metrics").status_code == 401
        for headers in ({"authorization": "bearer s3cret"}, {"x-api-key": "s3cret"}):
            assert http.get("/v1/models", headers=headers).status_code == 200
        proxied = {"x-api-key": "s3cret", "host": "model.example"}
        assert http.get("/v1/models", headers=proxied).status_code == 200


def test_other_names_and_origins_are_refused(http: httpx.Client, tiny_server: Served) -> None:
    assert http.get("/health", headers={"host": "evil.example"}).status_code == 403
    assert http.get("/health", headers={"host": f"localhost:{tiny_server.port}"}).status_code == 200
    evil = {"origin": "https://evil.example"}
    answer = http.post("/v1/chat/completions", json=BODY, headers=evil)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    own = {"origin": tiny_server.url}
    assert http.post("/v1/chat/completions", json=BODY, headers=own).status_code == 200


def test_listed_origins(tiny: Model) -> None:
    origin = {"origin": "https://app.example"}
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "x-api-key"}
    with (
        serving(tiny, origins=("https://app.example",), api_key="k") as served,
        httpx.Client(base_url=served.url) as http,
    ):
        answer = http.options("/v1/chat/completions", headers=origin | asked)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        refused = http.post("/v1/chat/completions", json=BODY, headers=origin)
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://app.example"
        other = {"origin": "https://evil.example"}
        assert http.options("/v1/models", headers=other | asked).status_code == 400
        assert http.get("/v1/models", headers=other | {"x-api-key": "k"}).status_code == 403


def test_the_body_limit(tiny: Model) -> None:
    with (
        serving(tiny, body_limit=10_000) as served,
        httpx.Client(base_url=served.url) as http,
    ):
        text = json.dumps(BODY | {"user": "x" * 20_000}).encode()
        headers = {"content-type": "application/json"}

        def pieces() -> Iterator[bytes]:
            yield from (text[i : i + 1000] for i in range(0, len(text), 1000))

        for content in (text, pieces()):
            answer = http.post("/v1/chat/completions", content=content, headers=headers)
            assert answer.status_code == 413
            assert "10,000" in answer.json()["error"]["message"]
        assert http.post("/v1/chat/completions", json=BODY).status_code == 200


def test_the_time_limit(byte_tokenizer) -> None:
    def slow(tokens: list[int]):
        from support.byte_tokenizer import VOCAB
        from support.fake_engine import hashed

        time.sleep(0.02)
        return hashed(VOCAB)(tokens)

    body = BODY | {"max_tokens": 900, "ignore_eos": True}
    with (
        serving(fake_model(byte_tokenizer, slow), timeout=0.5) as served,
        httpx.Client(base_url=served.url) as http,
    ):
        answer = http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 504
        assert answer.headers["x-should-retry"] == "false"
        stream = http.post("/v1/chat/completions", json=body | {"stream": True})
        assert stream.status_code == 200
        events = [line for line in stream.text.splitlines() if line.startswith("data: ")]
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == "timeout"
        deadline = time.monotonic() + 5
        while not served.idle():
            assert time.monotonic() < deadline


def test_signs_of_life(byte_tokenizer) -> None:
    def slow(tokens: list[int]):
        import numpy as np

        from support.byte_tokenizer import VOCAB

        time.sleep(0.25)
        return np.eye(VOCAB, dtype=np.float32)[97]

    body = BODY | {"stream": True}
    with (
        serving(fake_model(byte_tokenizer, slow), keep_alive=0.1) as served,
        httpx.Client(base_url=served.url) as http,
    ):
        text = http.post("/v1/chat/completions", json=body).text
    assert ": still here\n\n" in text
    assert text.count('"content":"a"') == 2


def test_names_of_the_model(tiny: Model) -> None:
    with (
        serving(tiny, name="big/model", aliases=("gpt-4o", "claude")) as served,
        httpx.Client(base_url=served.url) as http,
    ):
        ids = [entry["id"] for entry in http.get("/v1/models").json()["data"]]
        assert ids == ["big/model", "gpt-4o", "claude"]
        assert http.get("/v1/models/big/model").status_code == 200
        for name in ids:
            answer = http.post("/v1/chat/completions", json=BODY | {"model": name})
            assert answer.json()["model"] == name
        assert http.post("/v1/chat/completions", json=BODY).status_code == 404


def test_the_page(http: httpx.Client) -> None:
    answer = http.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for path, kind in (("/app.js", "text/javascript"), ("/style.css", "text/css")):
        file = http.get(path)
        assert file.status_code == 200
        assert file.headers["content-type"].startswith(kind)
        tag = {"if-none-match": file.headers["etag"]}
        again = http.get(path, headers=tag)
        assert (again.status_code, again.content) == (304, b"")
    assert http.get("/../app.py").status_code == 404
    assert http.get("/page/index.html").status_code == 404
