"""OpenAI's own client, unmodified, against the server."""

import asyncio
import json
import threading

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from pippin.apps.models import Model
from pippin.runtime.sampling import SamplingParams
from support.serving import Served, fake_model, serving

TURN = [{"role": "user", "content": "Hi there"}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"enum": [1, 2]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def client(tiny_server: Served) -> OpenAI:
    return OpenAI(base_url=f"{tiny_server.url}/v1", api_key="none", max_retries=0)


def expected(model: Model, prompt, sequence: int = 0, **params):
    result = model.generator.generate(prompt, SamplingParams(**params), sequence=sequence)
    finish = {"stop": "stop", "stop_string": "stop", "length": "length"}[result.finish_reason]
    return result.text, finish, len(result.tokens)


def test_a_chat_completion(client: OpenAI, tiny: Model) -> None:
    done = client.chat.completions.create(model="tiny", messages=TURN, max_tokens=12, seed=3)
    (choice,) = done.choices
    text, finish, tokens = expected(tiny, TURN, max_tokens=12, seed=3)
    assert (choice.message.content, choice.finish_reason) == (text, finish)
    assert (choice.message.role, choice.index, done.model) == ("assistant", 0, "tiny")
    assert done.usage.completion_tokens == tokens
    assert done.usage.prompt_tokens == len(tiny.generator.encode(TURN))
    assert done.usage.total_tokens == done.usage.prompt_tokens + tokens
    assert done._request_id.startswith("req_")


def test_the_stream_is_the_whole_reply(client: OpenAI, tiny: Model) -> None:
    stream = client.chat.completions.create(
        model="tiny",
        messages=TURN,
        max_completion_tokens=20,
        temperature=1.2,
        seed=5,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text, finish, tokens = expected(tiny, TURN, max_tokens=20, temperature=1.2, seed=5)
    said = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(said) == text
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == finish
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_several_replies(client: OpenAI, tiny: Model) -> None:
    options = {"model": "tiny", "messages": TURN, "n": 3, "temperature": 1.0, "seed": 9}
    done = client.chat.completions.create(**options, max_tokens=9)
    wanted = [expected(tiny, TURN, i, max_tokens=9, temperature=1.0, seed=9) for i in range(3)]
    assert [(c.message.content, c.finish_reason) for c in done.choices] == [w[:2] for w in wanted]
    assert done.usage.completion_tokens == sum(w[2] for w in wanted)
    texts = ["", "", ""]
    for chunk in client.chat.completions.create(**options, max_tokens=9, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [w[0] for w in wanted]


def test_logprobs_streamed_and_not(client: OpenAI) -> None:
    options = {"model": "tiny", "messages": TURN, "max_tokens": 8, "logprobs": True}
    whole = client.chat.completions.create(**options, top_logprobs=4)
    entries = whole.choices[0].logprobs.content
    assert len(entries) == whole.usage.completion_tokens
    for entry in entries:
        assert len(entry.top_logprobs) == 4
        assert entry.logprob == entry.top_logprobs[0].logprob  # greedy
        assert entry.token == entry.top_logprobs[0].token
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert max(values) < 0
    streamed = []
    for chunk in client.chat.completions.create(**options, top_logprobs=4, stream=True):
        if chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert streamed == entries
    shown = b"".join(bytes(entry.bytes) for entry in entries if not entry.token.startswith("<|"))
    assert shown.decode("utf-8", "replace")[:2] == whole.choices[0].message.content[:2]


def test_stop_strings_bias_and_limits(client: OpenAI, tiny: Model) -> None:
    text, _, _ = expected(tiny, TURN, max_tokens=30, ignore_eos=True)
    stop = text[4:6]
    done = client.chat.completions.create(
        model="tiny",
        messages=TURN,
        max_tokens=30,
        stop=[stop, "never"],
        extra_body={"ignore_eos": True},
    )
    assert done.choices[0].message.content == text[: text.index(stop)]
    assert done.choices[0].finish_reason == "stop"
    biased = client.chat.completions.create(
        model="tiny", messages=TURN, max_tokens=5, logit_bias={"97": 100}
    )
    assert biased.choices[0].message.content == "aaaaa"
    assert biased.choices[0].finish_reason == "length"


def test_content_parts_and_old_turns_are_rendered(client: OpenAI, tiny: Model) -> None:
    parts = [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Hi "}, {"type": "text", "text": "x"}],
        },
        {"role": "assistant", "content": "Hello", "refusal": None},
        {"role": "user", "content": "Again"},
    ]
    plain = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi x"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Again"},
    ]
    done = client.chat.completions.create(model="tiny", messages=parts, max_tokens=6)
    assert done.choices[0].message.content == expected(tiny, plain, max_tokens=6)[0]


def test_a_second_turn_reuses_the_first(client: OpenAI) -> None:
    turn = [{"role": "user", "content": "A question of some length, asked once"}]
    first = client.chat.completions.create(model="tiny", messages=turn, max_tokens=8)
    said = {"role": "assistant", "content": first.choices[0].message.content}
    more = [*turn, said, {"role": "user", "content": "And now?"}]
    second = client.chat.completions.create(model="tiny", messages=more, max_tokens=8)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON, "strict": True}},
        {"type": "json_object"},
    ],
    ids=["schema", "object"],
)
def test_structured_output(client: OpenAI, form: dict) -> None:
    done = client.chat.completions.create(
        model="tiny", messages=TURN, response_format=form, temperature=1.0, seed=1, max_tokens=200
    )
    if done.choices[0].finish_reason == "stop":
        document = json.loads(done.choices[0].message.content)
        assert isinstance(document, dict)
        if form["type"] == "json_schema":
            assert set(document) == {"name", "age"}
            assert len(document["name"]) <= 5
    else:
        assert form["type"] == "json_object"  # a schema without bounds may take longer


def test_choice_and_regex(client: OpenAI) -> None:
    for form in ({"choice": ["yes", "no"]}, {"regex": "(yes|no)"}):
        done = client.chat.completions.create(
            model="tiny", messages=TURN, max_tokens=9, extra_body={"structured_outputs": form}
        )
        assert done.choices[0].message.content in ("yes", "no")
        assert done.choices[0].finish_reason == "stop"


def test_completions(client: OpenAI, tiny: Model) -> None:
    done = client.completions.create(model="tiny", prompt=["ab", "cd"], max_tokens=7, logprobs=2)
    assert [c.text for c in done.choices] == [
        expected(tiny, prompt, max_tokens=7)[0] for prompt in ("ab", "cd")
    ]
    for choice in done.choices:
        assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs)
        assert all(len(top) == 2 for top in choice.logprobs.top_logprobs)
    ids = client.completions.create(model="tiny", prompt=[97, 98], max_tokens=7, stream=True)
    assert "".join(chunk.choices[0].text for chunk in ids) == done.choices[0].text


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "pippin"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_the_async_client(tiny_server: Served, tiny: Model) -> None:
    async def run() -> list[str]:
        async with AsyncOpenAI(base_url=f"{tiny_server.url}/v1", api_key="x") as client:

            async def one(seed: int) -> str:
                stream = await client.chat.completions.create(
                    model="tiny",
                    messages=TURN,
                    max_tokens=10,
                    temperature=1,
                    seed=seed,
                    stream=True,
                )
                return "".join([c.choices[0].delta.content or "" async for c in stream])

            return await asyncio.gather(*(one(seed) for seed in range(12)))

    wanted = [expected(tiny, TURN, max_tokens=10, temperature=1.0, seed=s)[0] for s in range(12)]
    assert asyncio.run(run()) == wanted


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"model": "gpt"}, openai.NotFoundError, "model"),
        ({"temperature": 3}, openai.BadRequestError, "temperature"),
        ({"top_p": "high"}, openai.BadRequestError, "top_p"),
        ({"frequency_penalty": -(10**400)}, openai.BadRequestError, "frequency_penalty"),
        ({"n": 1.5}, openai.BadRequestError, "n"),
        ({"logit_bias": {"9999": 1}}, openai.BadRequestError, "logit_bias"),
        ({"top_logprobs": 2}, openai.BadRequestError, "top_logprobs"),
        ({"extra_body": {"best": 1}}, openai.BadRequestError, "best"),
        ({"audio": {"voice": "x", "format": "mp3"}}, openai.BadRequestError, "audio"),
        ({"functions": [{"name": "f"}]}, openai.BadRequestError, "functions"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            openai.BadRequestError,
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "speed": 1}]},
            openai.BadRequestError,
            "messages[0].speed",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"typ": 1}}}},
            openai.BadRequestError,
            "response_format",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_errors_are_the_clients_own(client: OpenAI, fields: dict, error, param: str) -> None:
    given = {"model": "tiny", "messages": TURN, "max_tokens": 4, **fields}
    with pytest.raises(error) as raised:
        client.chat.completions.create(**given)
    assert raised.value.param == param
    assert param.partition("[")[0] in raised.value.message


def test_a_prompt_that_is_too_long(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "x" * 2000}]
        )
    assert raised.value.code == "context_length_exceeded"
    assert "1024" in raised.value.message


def test_a_reply_ends_with_the_context(client: OpenAI) -> None:
    done = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "x" * 990}], max_tokens=5000,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert done.choices[0].finish_reason == "length"
    assert done.usage.total_tokens == 1024


def test_a_full_queue_and_a_failing_model(byte_tokenizer) -> None:
    from pippin.runtime.errors import PippinError

    def model(tokens):
        raise PippinError("no luck")

    with serving(fake_model(byte_tokenizer, model), queue=0, slots=1) as served:
        client = OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)
        with pytest.raises(openai.InternalServerError, match="no luck"):
            client.chat.completions.create(model="tiny", messages=TURN)
        stream = client.chat.completions.create(model="tiny", messages=TURN, stream=True)
        with pytest.raises(openai.APIError, match="no luck"):
            list(stream)
        with pytest.raises(openai.BadRequestError, match="asks for 3 replies"):
            client.chat.completions.create(model="tiny", messages=TURN, n=3)
        begun = threading.Event()
        served.service.scheduler.call(begun.wait)
        with client.chat.completions.with_streaming_response.create(
            model="tiny", messages=TURN, stream=True
        ):
            with pytest.raises(openai.RateLimitError, match="queue is full") as raised:
                client.chat.completions.create(model="tiny", messages=TURN)
            begun.set()
        assert int(raised.value.response.headers["retry-after"]) >= 1
