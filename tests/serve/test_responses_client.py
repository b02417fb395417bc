"""OpenAI's newer interface, through OpenAI's own client."""

import json

import openai
import pytest
from openai import OpenAI

from pippin.apps.models import Model
from pippin.runtime.sampling import SamplingParams
from support.serving import Served


@pytest.fixture
def client(tiny_server: Served) -> OpenAI:
    return OpenAI(base_url=f"{tiny_server.url}/v1", api_key="none", max_retries=0)


def expected(model: Model, prompt, **params) -> str:
    return model.generator.generate(prompt, SamplingParams(**params)).text


def test_a_response(client: OpenAI, tiny: Model) -> None:
    done = client.responses.create(
        model="tiny", input="Hi there", instructions="Be brief.", max_output_tokens=9
    )
    prompt = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi there"},
    ]
    assert done.output_text == expected(tiny, prompt, max_tokens=9)
    if done.usage.output_tokens == 9:
        assert done.status == "incomplete"
        assert done.incomplete_details.reason == "max_output_tokens"
    assert done.usage.input_tokens == len(tiny.generator.encode(prompt))


def test_the_stream_builds_the_same_response(client: OpenAI) -> None:
    options = {"model": "tiny", "input": "Hi", "temperature": 1.0, "max_output_tokens": 15}
    whole = client.responses.create(**options, extra_body={"seed": 2})
    with client.responses.stream(**options, extra_body={"seed": 2}) as stream:
        events = list(stream)
    final = events[-1].response
    assert final.output_text == whole.output_text
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[2:4] == ["response.output_item.added", "response.content_part.added"]
    assert kinds[-1] in ("response.completed", "response.incomplete")


def test_what_came_out_goes_in_again(client: OpenAI, tiny: Model) -> None:
    first = client.responses.create(model="tiny", input="Hi", max_output_tokens=6)
    items = [{"role": "user", "content": "Hi"}]
    items += [item.model_dump(exclude_none=True) for item in first.output]
    items.append({"role": "user", "content": [{"type": "input_text", "text": "More"}]})
    second = client.responses.create(model="tiny", input=items, max_output_tokens=6)
    plain = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "More"},
    ]
    assert second.output_text == expected(tiny, plain, max_tokens=6)


def test_logprobs_and_structured_output(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "name": "ok", "schema": schema, "strict": True}
    options = {"model": "tiny", "input": "Hi", "text": {"format": form}, "top_logprobs": 2}
    include = ["message.output_text.logprobs"]
    done = client.responses.create(**options, include=include)
    assert set(json.loads(done.output_text)) == {"ok"}
    entries = done.output[0].content[0].logprobs
    assert len(entries) == done.usage.output_tokens
    with client.responses.stream(**options, include=include) as stream:
        final = stream.get_final_response()
    assert final.output[0].content[0].logprobs == entries


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"extra_body": {"speed": 1}}, "speed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_supported_is_named(client: OpenAI, fields: dict, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(**{"model": "tiny", "input": "Hi", **fields})
    assert raised.value.param == param
