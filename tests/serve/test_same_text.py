"""The chat and the server say the same to the same messages, on both engines."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from openai import OpenAI

from pippin.apps.models import load_model
from support.command_line import make_chat_model, run_pippin
from support.serving import serving
from support.wheels import smollm2_gguf

ASKED = ("What is rain?", "And snow?")


def transcript(url: str, **options) -> list[str]:
    """What the server says to the turns, each with all before it."""
    client = OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
    messages, said = [], []
    for text in ASKED:
        messages.append({"role": "user", "content": text})
        done = client.chat.completions.create(model="tiny", messages=messages, **options)
        said.append(done.choices[0].message.content)
        messages.append({"role": "assistant", "content": said[-1]})
    return said


def chat(model: Path, *args: object) -> str:
    stdin = "".join(f"{text}\n" for text in ASKED).encode()
    run = run_pippin("chat", model, *args, stdin=stdin)
    assert run.code == 0, run.err
    return run.out


def test_chat_and_server_on_both_engines(tmp_path: Path, tiny_folder: Path) -> None:
    checkpoint = make_chat_model(tmp_path / "model")
    transcripts = []
    for backend, model in (("onnx", tiny_folder), ("mlx", checkpoint)):
        args = ("--backend", backend, "--seed", 7, "--temperature", 0.8, "--max-tokens", 20)
        with serving(load_model(str(model), backend, precise=backend == "onnx")) as served:
            said = transcript(served.url, seed=7, temperature=0.8, max_tokens=20)
        assert chat(model, *args) == "".join(f"{text}\n" for text in said)
        transcripts.append(said)
    assert transcripts[0] == transcripts[1]


@pytest.mark.slow
def test_smollm2_in_company() -> None:
    """q4 on onnxruntime: the chat's text, and every reply the same alone and among others."""
    path = smollm2_gguf()
    model = load_model(str(path), "onnx", weights="q4", repeatable=True)
    questions = [f"Tell me about the number {n}." for n in range(8)]
    with serving(model, slots=8) as served:
        client = OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)
        said = transcript(served.url, seed=1, temperature=0.7, max_tokens=40)

        def one(text: str) -> str:
            turn = [{"role": "user", "content": text}]
            chunks = client.chat.completions.create(
                model="tiny", messages=turn, max_tokens=24, temperature=0, stream=True
            )
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

        alone = [one(text) for text in questions]
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(one, questions))
    assert together == alone
    args = ("--backend", "onnx", "--seed", 1, "--temperature", 0.7, "--max-tokens", 40)
    assert chat(path, *args) == "".join(f"{text}\n" for text in said)


@pytest.mark.slow
def test_smollm2_answers_the_same_request_the_same_again() -> None:
    """What the slots hold by then decides on no token, though the quick graph rounds."""
    model = load_model(str(smollm2_gguf()), "onnx", weights="q4", repeatable=True)
    with serving(model, slots=4) as served:
        client = OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)
        for seed in range(3):
            turn = [{"role": "user", "content": f"Name two nice things about {seed * 37}."}]
            options = {"model": "tiny", "messages": turn, "max_tokens": 30, "temperature": 0.8}
            done = [client.chat.completions.create(**options, seed=seed) for _ in range(2)]
            assert done[1].usage.prompt_tokens_details.cached_tokens > 0
            assert done[0].choices[0].message.content == done[1].choices[0].message.content
