"""The web page with the server that it comes from, and a tiny model."""

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from pippin.apps.models import load_model
from pippin.export.folder import export_folder
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from support.chat_page import send
from support.command_line import make_chat_model
from support.serving import Served, serving

expect = pytest.importorskip("playwright.sync_api").expect

SAMPLING = {"temperature": 0.9, "seed": 3, "top_k": 50, "max_tokens": 24}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("page")
    checkpoint = make_chat_model(folder / "tiny", max_position_embeddings=512)
    exported = export_folder(open_checkpoint(checkpoint), folder / "onnx", weights="fp32")
    model = load_model(str(exported), threads=1)
    with serving(model, context=512, api_key="s3cret", aliases=("other",)) as served:
        yield served


def completion(server: Served, messages: list[dict[str, str]]) -> str:
    """What the server says to any client."""
    body = json.dumps({"model": "tiny", "messages": messages, **SAMPLING}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer s3cret"}
    request = urllib.request.Request(f"{server.url}/v1/chat/completions", body, headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def give_key(page: Any) -> None:
    page.get_by_role("dialog", name="API key").get_by_label("Key", exact=True).fill("s3cret")
    page.keyboard.press("Enter")
    expect(page.locator("#model")).to_be_enabled()


def stored_messages(page: Any) -> list[dict[str, Any]]:
    entries = page.evaluate("() => ({ ...localStorage })")
    (chat,) = (json.loads(text) for key, text in entries.items() if key.startswith("pippin.chat."))
    return chat["messages"]


def test_the_page_says_what_the_server_says(new_page: Any, server: Served, violations: Any) -> None:
    page = new_page(server.url, reduced_motion="reduce")
    give_key(page)
    assert page.locator("#model option").all_text_contents() == ["tiny", "other"]
    page.get_by_role("button", name="Settings").click()
    labels = {"temperature": "Temperature", "seed": "Seed", "top_k": "Top k"}
    for name, label in (labels | {"max_tokens": "Longest reply"}).items():
        page.get_by_label(label).fill(str(SAMPLING[name]))
    page.get_by_role("button", name="Save").click()
    send(page, "Hello")
    foot = page.locator(".assistant .foot")
    expect(foot).to_contain_text("token")
    question = {"role": "user", "content": "Hello"}
    expected = completion(server, [question])
    assert expected
    assert stored_messages(page)[1]["content"] == expected
    page.get_by_role("button", name="Regenerate").click()
    expect(foot).to_contain_text("cached")  # the prompt, now
    assert stored_messages(page)[1]["content"] == expected
    assert violations(page) == []


def test_a_full_context_of_the_server(new_page: Any, server: Served) -> None:
    page = new_page(server.url)
    give_key(page)
    send(page, "word " * 400)
    expect(page.get_by_role("alert")).to_contain_text("Begin a new chat")
