"""POST /pippin/explain: what the reply's tokens read, beside the replies under way."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest

from pippin.apps.insight.attention import weights
from pippin.apps.insight.trace import trace
from pippin.apps.models import Model, load_model
from pippin.apps.serve import insight
from support.command_line import make_chat_model
from support.serving import Served, serving, wait_until

TURNS = [
    {"role": "user", "content": "Hi there"},
    {"role": "assistant", "content": "Hello, naïve you."},
]
BODY = {"model": "tiny", "messages": TURNS}
PROMPT = b"user\nHi there\nassistant\n"


@pytest.fixture(scope="module")
def mlx_model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("explained")
    path = make_chat_model(folder / "tiny", max_position_embeddings=2048)
    return load_model(str(path), "mlx")


@pytest.fixture(params=["onnx", "mlx"])
def served(request: Any, tiny: Model) -> Iterator[Served]:
    model = tiny if request.param == "onnx" else request.getfixturevalue("mlx_model")
    with serving(model) as served:
        yield served


def post(served: Served, body: Any, path: str = "/pippin/explain", **headers: str) -> Any:
    return httpx.post(f"{served.url}{path}", json=body, headers=headers, timeout=60)


def tokens_of(served: Served) -> list[int]:
    """The conversation, as the model reads it: the prompt and then the reply."""
    generator = served.service.model.generator
    prompt = generator.encode(TURNS[:1])
    return [*prompt, *generator.tokenizer.encode(TURNS[1]["content"], add_special_tokens=False)]


def test_keys_are_those_of_the_model(served: Served) -> None:
    answer = post(served, BODY | {"layer": 2, "top": 5}).json()
    ids = tokens_of(served)
    start = answer["reply"]
    assert len(answer["tokens"]) == len(ids)
    assert ids[start:] == list(TURNS[1]["content"].encode())
    assert (answer["layers"], answer["heads"], answer["layer"]) == (3, 6, 2)
    generator = served.service.model.generator

    def traced() -> Any:
        return trace(generator, ids[:-1], [2]).layers[2]

    layer = served.service.scheduler.call(traced).result()
    full = weights(layer, range(start - 1, len(ids) - 1))  # [H, n, S]
    rows = np.concatenate([full, full.mean(axis=0, keepdims=True)])
    for head, of_head in enumerate(rows):
        for at, row in enumerate(of_head):
            keys, found = answer["keys"][head][at], answer["weights"][head][at]
            assert len(keys) == 5
            assert max(keys) <= start - 1 + at
            np.testing.assert_allclose(found, np.sort(row)[::-1][:5], atol=2e-5)
            np.testing.assert_allclose(found, row[keys], atol=2e-5)
    np.testing.assert_allclose(answer["first_token"], rows[..., 0], atol=2e-5)
    assert "not an explanation" in answer["caveat"]


def test_both_engines_say_the_same(tiny: Model, mlx_model: Model) -> None:
    answers = []
    for model in (tiny, mlx_model):
        with serving(model) as served:
            answers.append(post(served, BODY | {"layer": 1}).json())
    first, second = answers
    assert first["tokens"] == second["tokens"]
    for ours, others in zip(first["weights"], second["weights"], strict=True):
        np.testing.assert_allclose(ours, others, atol=1e-4)


def test_candidates_are_the_models_own(served: Served) -> None:
    """As the logprobs of a completion say, which the scheduler has from its batch."""
    answer = post(served, BODY | {"token": 3}).json()
    asked = {"model": "tiny", "messages": TURNS[:1], "max_tokens": 1}
    assert len(answer["tokens"]) == answer["reply"] + 4
    (chosen,) = [one for one in answer["candidates"] if one["chosen"]]
    assert chosen["text"] == "l"
    begun = post(served, BODY | {"token": 0}).json()["candidates"]
    logprobs = {"logprobs": True, "top_logprobs": 8, "temperature": 0}
    said = post(served, asked | logprobs, "/v1/chat/completions").json()
    top = said["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    expected = [np.exp(one["logprob"]) for one in top]
    ours = [one["probability"] for one in begun if one["rank"] < 8]
    np.testing.assert_allclose(ours, expected, rtol=1e-3)


def test_replies_go_on_while_a_reply_is_explained(mlx_model: Model) -> None:
    """On MLX the trace has the engine's thread: between its chunks the others take steps."""
    with serving(mlx_model, context=2048) as served:
        scheduler, done = served.service.scheduler, []
        during: list[int] = []
        steps = served.service.metrics

        def reply() -> None:
            asked = {"messages": TURNS[:1], "max_tokens": 300, "ignore_eos": True}
            done.append(post(served, {"model": "tiny"} | asked, "/v1/chat/completions"))

        def long_work() -> None:
            before = steps.reply_tokens
            for _ in range(5):
                scheduler.go_on()
            during.append(steps.reply_tokens - before)

        thread = threading.Thread(target=reply)
        thread.start()
        wait_until(lambda: scheduler.state()["busy"] == 1)
        scheduler.call(long_work).result()
        thread.join()
        assert done[0].json()["usage"]["completion_tokens"] == 300
        alone = post(
            served,
            {"model": "tiny", "messages": TURNS[:1], "max_tokens": 300, "ignore_eos": True},
            "/v1/chat/completions",
        )
        said = [one.json()["choices"][0]["message"] for one in (done[0], alone)]
        assert said[0] == said[1]
        assert during[0] > 0


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({"model": "other"}, 404, "there is no model"),
        ({"messages": []}, 400, "messages: is empty"),
        ({"messages": TURNS[:1]}, 400, "must end with the reply"),
        ({"messages": TURNS[1:]}, 400, "must end with the reply"),
        ({"messages": [TURNS[0], {"role": "assistant", "content": ""}]}, 400, "empty"),
        ({"layer": 3}, 400, "no layer 3"),
        ({"layer": "1"}, 400, "layer: is"),
        ({"token": 99}, 400, "token: is 99"),
        ({"top": 0}, 400, "top: is 0"),
        ({"top": 1000}, 400, "top: is 1000"),
        ({"head": 1}, 400, "head: is not supported here"),
        ({"messages": [TURNS[0], {"role": "assistant", "content": "x" * 2000}]}, 400, "context"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else None,
)
def test_faults(tiny_server: Served, changes: dict, status: int, says: str) -> None:
    answer = post(tiny_server, BODY | changes)
    assert answer.status_code == status, answer.text
    assert says in answer.json()["error"]["message"]


def test_a_key_is_asked_for(tiny: Model) -> None:
    with serving(tiny, api_key="s3cret") as served:
        assert post(served, BODY).status_code == 401
        assert post(served, BODY, authorization="Bearer s3cret").status_code == 200


def test_one_at_a_time_and_few_may_wait(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sixth at once is told to come again; one that goes away ends at the next check."""
    gate, ended = threading.Event(), []

    def slowly(service: Any, asked: Any, check: Any) -> bytes:
        try:
            while not gate.wait(0.01):
                check()
        finally:
            ended.append(gate.is_set())
        return b"{}"

    monkeypatch.setattr(insight, "_explain", slowly)
    with serving(tiny) as served:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{served.url}/pippin/explain", json=BODY, timeout=0.3)
        wait_until(lambda: ended == [False])
        statuses: list[int] = []
        calls = [
            threading.Thread(target=lambda: statuses.append(post(served, BODY).status_code))
            for _ in range(5)
        ]
        for call in calls:
            call.start()
        wait_until(lambda: served.service.insight._count == 5)
        refused = post(served, BODY)
        assert refused.status_code == 429
        assert refused.headers["retry-after"]
        gate.set()
        for call in calls:
            call.join()
        assert statuses == [200] * 5


def test_a_server_that_ends_does_not_wait(tiny_folder: Path) -> None:
    """SIGTERM while a reply is explained: the answer is an error or the result, and it ends."""
    with serving(load_model(str(tiny_folder), threads=1), shutdown=1.0) as served:
        thread = threading.Thread(target=lambda: post(served, BODY))
        thread.start()
        wait_until(lambda: served.service.insight._count == 1)
        served.stop()
        thread.join(10)
        assert not thread.is_alive()
