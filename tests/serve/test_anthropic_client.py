"""Anthropic's own client, unmodified, against the server."""

import asyncio
import json

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic

from pippin.apps.models import Model
from pippin.runtime.sampling import SamplingParams
from support.serving import Served, serving

TURN = [{"role": "user", "content": "Hi there"}]


@pytest.fixture
def client(tiny_server: Served) -> Anthropic:
    return Anthropic(base_url=tiny_server.url, api_key="none", max_retries=0)


def expected(model: Model, prompt, **params) -> str:
    return model.generator.generate(prompt, SamplingParams(**params)).text


def test_a_message(client: Anthropic, tiny: Model) -> None:
    done = client.messages.create(model="tiny", max_tokens=9, messages=TURN, system="Be brief.")
    prompt = [{"role": "system", "content": "Be brief."}, *TURN]
    (block,) = done.content
    assert (block.type, block.text) == ("text", expected(tiny, prompt, max_tokens=9))
    assert (done.role, done.type, done.model) == ("assistant", "message", "tiny")
    assert done.stop_reason in ("max_tokens", "end_turn")
    assert done.usage.output_tokens <= 9
    counted = done.usage.input_tokens + done.usage.cache_read_input_tokens
    assert counted == len(tiny.generator.encode(prompt))
    assert done._request_id.startswith("req_")


def test_the_stream_is_the_whole_message(client: Anthropic, tiny: Model) -> None:
    options = {"model": "tiny", "max_tokens": 15, "messages": TURN}
    options["extra_body"] = {"temperature": 1.0, "seed": 4}
    whole = client.messages.create(**options)
    with client.messages.stream(**options) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(texts) == final.content[0].text == whole.content[0].text
    assert whole.content[0].text == expected(tiny, TURN, max_tokens=15, temperature=1.0, seed=4)
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_stop_sequences_are_told(client: Anthropic, tiny: Model) -> None:
    text = expected(tiny, TURN, max_tokens=30, ignore_eos=True)
    stop = text[4:6]
    done = client.messages.create(
        model="tiny",
        max_tokens=30,
        messages=TURN,
        stop_sequences=["never", stop],
        extra_body={"ignore_eos": True},
    )
    assert done.content[0].text == text[: text.index(stop)]
    assert (done.stop_reason, done.stop_sequence) == ("stop_sequence", stop)


def test_a_conversation_of_blocks(client: Anthropic, tiny: Model) -> None:
    blocks = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "A "}, {"type": "text", "text": "b"}],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "C"}]},
        {"role": "user", "content": "D"},
    ]
    blocks[0]["content"][0]["cache_control"] = {"type": "ephemeral"}
    plain = [
        {"role": "user", "content": "A b"},
        {"role": "assistant", "content": "C"},
        {"role": "user", "content": "D"},
    ]
    done = client.messages.create(model="tiny", max_tokens=6, messages=blocks)
    assert done.content[0].text == expected(tiny, plain, max_tokens=6)
    again = client.messages.create(model="tiny", max_tokens=6, messages=blocks)
    assert again.usage.cache_read_input_tokens > 0
    counted = client.messages.count_tokens(model="tiny", messages=blocks)
    assert counted.input_tokens == len(tiny.generator.encode(plain))


def test_structured_output(client: Anthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    done = client.messages.create(
        model="tiny",
        max_tokens=40,
        messages=TURN,
        output_config={"format": {"type": "json_schema", "schema": schema}},
    )
    assert set(json.loads(done.content[0].text)) == {"ok"}


def test_models(client: Anthropic) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").type == "model"


def test_the_async_client(tiny_server: Served, tiny: Model) -> None:
    async def run() -> list[str]:
        async with AsyncAnthropic(base_url=tiny_server.url, api_key="x") as client:

            async def one(seed: int) -> str:
                async with client.messages.stream(
                    model="tiny",
                    max_tokens=8,
                    messages=TURN,
                    extra_body={"temperature": 1.0, "seed": seed},
                ) as stream:
                    return "".join([text async for text in stream.text_stream])

            return await asyncio.gather(*(one(seed) for seed in range(8)))

    wanted = [expected(tiny, TURN, max_tokens=8, temperature=1.0, seed=seed) for seed in range(8)]
    assert asyncio.run(run()) == wanted


@pytest.mark.parametrize(
    ("fields", "error", "named"),
    [
        ({"model": "claude"}, anthropic.NotFoundError, "model"),
        ({"extra_body": {"temperature": 2.0}}, anthropic.BadRequestError, "temperature"),
        ({"extra_body": {"top_k": -1}}, anthropic.BadRequestError, "top_k"),
        ({"extra_body": {"mcp_servers": []}}, anthropic.BadRequestError, "mcp_servers"),
        (
            {"messages": [{"role": "system", "content": "x"}]},
            anthropic.BadRequestError,
            "messages[0].role",
        ),
        (
            {"messages": [*TURN, {"role": "assistant", "content": "I"}]},
            anthropic.BadRequestError,
            "messages",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            anthropic.BadRequestError,
            "messages[0].content[0].type",
        ),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            anthropic.BadRequestError,
            "thinking.budget_tokens",
        ),
    ],
    ids=["model", "temperature", "top_k", "unknown", "role", "prefill", "image", "budget"],
)
def test_errors_are_the_clients_own(client: Anthropic, fields: dict, error, named: str) -> None:
    with pytest.raises(error) as raised:
        client.messages.create(**{"model": "tiny", "max_tokens": 4, "messages": TURN, **fields})
    assert raised.value.body["type"] == "error"
    assert raised.value.body["error"]["message"].startswith(f"{named}: ")


def test_the_key_and_the_body_limit(tiny: Model) -> None:
    with serving(tiny, api_key="secret", body_limit=2000) as served:
        options = {"base_url": served.url, "max_retries": 0}
        wrong = Anthropic(api_key="wrong", **options)
        with pytest.raises(anthropic.AuthenticationError):
            wrong.messages.create(model="tiny", max_tokens=4, messages=TURN)
        right = Anthropic(api_key="secret", **options)
        assert right.messages.create(model="tiny", max_tokens=4, messages=TURN).content
        long = [{"role": "user", "content": "x" * 3000}]
        with pytest.raises(anthropic.APIStatusError) as raised:
            right.messages.create(model="tiny", max_tokens=4, messages=long)
        assert raised.value.status_code == 413
        assert raised.value.body["error"]["type"] == "request_too_large"
