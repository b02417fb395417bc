"""/v1/embeddings, through OpenAI's own client."""

import json
from collections.abc import Iterator

import httpx2 as httpx
import numpy as np
import openai
import pytest
from openai import OpenAI

from pippin.apps.embedders import load_embedder
from pippin.apps.models import Model
from support.serving import Served, serving
from support.wheels import minilm_folder

TEXTS = ["one text", "another, somewhat longer, text", "x"]


@pytest.fixture(scope="module")
def embedder():
    return load_embedder(str(minilm_folder()), "mlx")


@pytest.fixture(scope="module")
def served(tiny: Model, embedder) -> Iterator[Served]:
    with serving(tiny, embedder=embedder, embedder_name="minilm") as served:
        yield served


@pytest.mark.parametrize("form", [{}, {"encoding_format": "float"}], ids=["default", "float"])
def test_vectors_are_the_embedders(served: Served, embedder, form: dict) -> None:
    client = OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)
    made = client.embeddings.create(model="minilm", input=TEXTS, **form)
    vectors = [entry.embedding for entry in made.data]
    np.testing.assert_allclose(vectors, embedder.embed(TEXTS), atol=1e-6)
    assert [entry.index for entry in made.data] == [0, 1, 2]
    assert made.usage.prompt_tokens == sum(len(embedder.tokens(text)) for text in TEXTS)
    assert {model.id for model in client.models.list()} == {"tiny", "minilm"}


def test_replies_go_on_beside_embeddings(served: Served) -> None:
    client = OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)
    turn = [{"role": "user", "content": "Hi"}]
    stream = client.chat.completions.create(
        model="tiny", messages=turn, stream=True, max_tokens=60, extra_body={"ignore_eos": True}
    )
    next(stream)
    assert len(client.embeddings.create(model="minilm", input=TEXTS * 10).data) == 30
    assert [c for chunk in stream for c in chunk.choices][-1].finish_reason == "length"


@pytest.mark.parametrize(
    "fields",
    [{"model": "tiny"}, {"dimensions": 3}, {"input": []}, {"input": [1, 2]}, {"input": ""}],
    ids=json.dumps,
)
def test_what_is_wrong_is_named(served: Served, fields: dict) -> None:
    body = {"model": "minilm", "input": "x"} | fields
    answer = httpx.post(f"{served.url}/v1/embeddings", json=body)
    assert answer.status_code == (404 if "model" in fields else 400)
    assert answer.json()["error"]["param"] == next(iter(fields))


def test_without_an_encoder(tiny_server: Served) -> None:
    client = OpenAI(base_url=f"{tiny_server.url}/v1", api_key="x", max_retries=0)
    with pytest.raises(openai.NotFoundError, match="--embedder"):
        client.embeddings.create(model="tiny", input="x")
