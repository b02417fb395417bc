"""The thinking part of a reply, told apart from the answer however the text is cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pippin.apps.reasoning import Marks, Reasoning, find_marks
from pippin.apps.tools import Content
from pippin.runtime.chat_template import ChatTemplate
from support.corpora import template_sources

THINK = Marks("<think>", "</think>")


def split(marks: Marks, *pieces: str, prompt: str = "") -> tuple[str, str]:
    splitter = marks.splitter(prompt)
    events = [event for piece in pieces for event in splitter.feed(piece)] + splitter.finish()
    kinds = (Reasoning, Content)
    return tuple("".join(e.text for e in events if isinstance(e, kind)) for kind in kinds)


@pytest.mark.parametrize(
    ("reply", "prompt", "parts"),
    [
        ("<think>\nhm, 2\n</think>\n\nIt is 2.", "", ("hm, 2", "It is 2.")),
        ("\nhm\n</think>\nYes.\n", "…assistant\n<think>\n", ("hm", "Yes.\n")),
        ("<think>\nhm</think>Yes", "…<think>\n", ("hm", "Yes")),
        (" <think></think>a", "", ("", "a")),
        ("<think>cut off <", "", ("cut off <", "")),
        ("no marks </think>\n", "", ("", "no marks </think>\n")),
        ("  a <think>b</think>", "", ("", "  a <think>b</think>")),
        ("<think>a</think>b<think>c</think>", "", ("a", "b<think>c</think>")),
        ("done", "…<think>\n\n</think>\n\n", ("", "done")),
        ("<thin", "", ("", "<thin")),
        (" \n", "", ("", " \n")),
        ("", "", ("", "")),
    ],
)
def test_thinking_and_answer(reply: str, prompt: str, parts: tuple[str, str]) -> None:
    assert split(THINK, reply, prompt=prompt) == parts
    assert split(THINK, *reply, prompt=prompt) == parts


PARTS = st.sampled_from(["<think>", "</think>", "<", "/think>", " ", "\n", "a", "é😀", "<th"])


@given(
    parts=st.lists(PARTS, max_size=10),
    places=st.lists(st.integers(0, 99), max_size=6),
    opened=st.booleans(),
)
def test_thinking_ends_at_the_first_end_however_the_text_is_cut(parts, places, opened) -> None:
    text, prompt = "".join(parts), "<think>" if opened else ""
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    pieces = [text[start:end] for start, end in pairwise(bounds)]
    if opened or text.lstrip().startswith("<think>"):
        thought, _, answer = text.lstrip().removeprefix("<think>").partition("</think>")
        expected = thought.strip(), answer.lstrip()
    else:
        expected = "", text
    assert split(THINK, *pieces, prompt=prompt) == expected


def test_a_thought_is_told_at_once() -> None:
    splitter = THINK.splitter()
    assert splitter.feed("<think>") == []
    assert splitter.feed("hm so ") == [Reasoning("hm so")]
    assert splitter.feed("be it</thi") == [Reasoning(" be it")]
    assert splitter.feed("nk>\n\nYes") == [Content("Yes")]
    assert splitter.feed(", 2") == [Content(", 2")]


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("Qwen-Qwen3-0.6B", "<think>"),
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "<think>"),
        ("mistralai-Ministral-3-14B-Reasoning-2512", "[THINK]"),
        ("ByteDance-Seed-OSS", "<seed:think>"),
        ("openai-gpt-oss-120b", "<|channel|>analysis<|message|>"),
        ("meta-llama-Llama-3.1-8B-Instruct", None),
        ("google-gemma-2-2b-it", None),
    ],
)
def test_public_templates_show_their_marks(name: str, begin: str | None) -> None:
    marks = find_marks(ChatTemplate(template_sources()[name], {}))
    assert (marks and marks.begin) == begin


def test_a_prompt_that_begins_the_thinking() -> None:
    sources = template_sources()
    question = [{"role": "user", "content": "?"}]
    step = ChatTemplate(sources["StepFun3.5-Flash"], {})
    reply = "hm</think>Yes"
    assert split(find_marks(step), reply, prompt=step.render(question)) == ("hm", "Yes")
    qwen = ChatTemplate(sources["Qwen-Qwen3-0.6B"], {})
    closed = qwen.render(question, enable_thinking=False)
    assert split(find_marks(qwen), "Yes", prompt=closed) == ("", "Yes")


def test_the_channels_of_gpt_oss() -> None:
    marks = find_marks(ChatTemplate(template_sources()["openai-gpt-oss-120b"], {}))
    final = "<|channel|>final<|message|>It is 2."
    thought = "<|channel|>analysis<|message|>1 + 1<|end|><|start|>assistant"
    assert split(marks, *(thought + final)) == ("1 + 1", "It is 2.")
    assert split(marks, *final) == ("", "It is 2.")
    call = "<|channel|>commentary to=functions.add <|constrain|>json<|message|>{}"
    assert split(marks, *(thought + call)) == ("1 + 1", f"<|start|>assistant{call}")
    assert split(marks, call) == ("", call)
