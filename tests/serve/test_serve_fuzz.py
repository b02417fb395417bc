"""The HTTP surface under requests that nobody would write: an answer each time, never a fault."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.serving import Served, fake_model, says, serving

FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
TURN = [{"role": "user", "content": "Hi"}]
BASES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "tiny", "messages": TURN, "max_tokens": 3},
    "/v1/completions": {"model": "tiny", "prompt": "Hi", "max_tokens": 3},
    "/v1/responses": {"model": "tiny", "input": "Hi", "max_output_tokens": 3},
    "/v1/messages": {"model": "tiny", "messages": TURN, "max_tokens": 3},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": TURN},
    "/v1/embeddings": {"model": "tiny", "input": "Hi"},
}
FIELDS = (
    *("model", "messages", "prompt", "input", "max_tokens", "max_completion_tokens", "stream"),
    *("temperature", "top_p", "top_k", "n", "stop", "stop_sequences", "seed", "logit_bias"),
    *("logprobs", "top_logprobs", "tools", "tool_choice", "response_format", "stream_options"),
    *("system", "metadata", "user", "thinking", "text", "reasoning", "include", "instructions"),
    *("structured_outputs", "chat_template_kwargs", "encoding_format", "dimensions", "echo"),
    *("dry_multiplier", "xtc_probability", "repetition_penalty", "parallel_tool_calls"),
)
NAMES = st.sampled_from(
    ["role", "content", "type", "text", "function", "name", "parameters", "id", "schema"]
)
WORDS = st.sampled_from(["user", "assistant", "tool", "text", "function", "auto", "json_schema"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8) | WORDS,
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(NAMES | st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@pytest.fixture(scope="module")
def fuzzed(byte_tokenizer: Path) -> Iterator[Served]:
    room = 1 << 16  # for whatever conversation is thought of
    with serving(fake_model(byte_tokenizer, says("Hello."), context=room), context=room) as served:
        yield served


@pytest.fixture(scope="module")
def http(fuzzed: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=fuzzed.url, timeout=30) as client:
        yield client


def check(answer: httpx.Response) -> None:
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert answer.json()["error"]["message"]
    elif answer.headers["content-type"].startswith("text/event-stream"):
        for event in answer.text.strip().split("\n\n"):
            line = event.splitlines()[-1]
            assert line.startswith((":", "data: "))
            if line.startswith("data: ") and line != "data: [DONE]":
                assert "error" not in json.loads(line[6:]), line
    else:
        answer.json()


@FUZZ
@given(
    path=st.sampled_from(list(BASES)),
    changes=st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=6), JSON, max_size=4),
)
def test_any_json(http: httpx.Client, path: str, changes: dict) -> None:
    check(http.post(path, json=BASES[path] | changes))


@FUZZ
@given(path=st.sampled_from(list(BASES)), body=st.binary(max_size=200))
def test_any_bytes(http: httpx.Client, path: str, body: bytes) -> None:
    check(http.post(path, content=body, headers={"content-type": "application/json"}))


@FUZZ
@given(messages=st.lists(JSON, max_size=4), path=st.sampled_from(list(BASES)[:5]))
def test_any_messages(http: httpx.Client, messages: list, path: str) -> None:
    field = {"/v1/completions": "prompt", "/v1/responses": "input"}.get(path, "messages")
    check(http.post(path, json=BASES[path] | {field: messages}))


@FUZZ
@given(text=st.text(alphabet=st.characters(exclude_categories=()), max_size=30))
def test_any_text(http: httpx.Client, text: str) -> None:
    """Lone surrogates included, which JSON can write and no tokenizer can read."""
    turn = [{"role": "user", "content": text}]
    body = json.dumps(BASES["/v1/chat/completions"] | {"messages": turn, "stream": True})
    check(
        http.post(
            "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
        )
    )


def test_afterwards_all_is_as_before(fuzzed: Served, http: httpx.Client) -> None:
    assert fuzzed.idle()
    assert http.get("/health").json()["status"] == "ok"
    answer = http.post("/v1/chat/completions", json=BASES["/v1/chat/completions"])
    assert answer.json()["usage"]["completion_tokens"] == 3


NUMBER = {"type": ["number", "null"]}
WHOLE = {"type": ["integer", "null"]}
TEXT = {"type": ["string", "null"]}
STOP = {"type": "string", "minLength": 1}
STOPS = {"type": "array", "items": STOP, "maxItems": 16}
MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "additionalProperties": False,
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant"]},
        "content": {"type": "string"},
        "name": TEXT,
    },
}
CHAT = {
    "type": "object",
    "required": ["model", "messages"],
    "additionalProperties": False,
    "properties": {
        "model": {"const": "tiny"},
        "messages": {"type": "array", "minItems": 1, "items": MESSAGE},
        "max_tokens": {**WHOLE, "minimum": 1, "maximum": 2**31},
        "temperature": {**NUMBER, "minimum": 0, "maximum": 2},
        "top_p": {**NUMBER, "exclusiveMinimum": 0, "maximum": 1},
        "presence_penalty": {**NUMBER, "minimum": -2, "maximum": 2},
        "seed": {**WHOLE, "minimum": -(2**63), "maximum": 2**64 - 1},
        "n": {**WHOLE, "minimum": 1, "maximum": 16},
        "stop": {"anyOf": [STOP, {"type": "null"}, STOPS]},
        "user": TEXT,
    },
}
SPEC = schemathesis.openapi.from_dict(
    {
        "openapi": "3.1.0",
        "info": {"title": "chat", "version": "1"},
        "paths": {
            "/v1/chat/completions": {
                "post": {
                    "requestBody": {
                        "required": True,
                        "content": {"application/json": {"schema": CHAT}},
                    },
                    "responses": {
                        "200": {"description": "a reply"},
                        "400": {"description": "a field is wrong"},
                        "404": {"description": "no such model"},
                        "415": {"description": "no JSON"},
                    },
                }
            }
        },
    }
)


@SPEC.parametrize()
@settings(FUZZ, max_examples=60)
def test_the_specification_holds(case: Any, fuzzed: Served) -> None:
    """What it allows is answered, and what it forbids is refused with 4xx."""
    case.call_and_validate(base_url=fuzzed.url)
