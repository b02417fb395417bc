"""The token that ends a turn, for public templates whose models' own settings are known."""

import re

import pytest

from pippin.runtime.chat_template import ChatTemplate
from pippin.runtime.end_of_turn import find_end_of_turn
from support import corpora

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
TAGS = re.compile(r"<[^<>\s'\"{}%]+>|\[e~\[|\]~b\]|\[/?INST\]")

# As in the models' generation_config.json or model cards.
EXPECTED = {
    "Apertus-8B-Instruct": "<|assistant_end|>",
    "Apriel-1.6-15b-Thinker-fixed": "<|end|>",
    "Bielik-11B-v3.0-Instruct": "<|im_end|>",
    "ByteDance-Seed-OSS": "<seed:eos>",
    "CohereForAI-c4ai-command-r-plus-tool_use": "<|END_OF_TURN_TOKEN|>",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "<|END_OF_TURN_TOKEN|>",
    "GLM-4.6": "<|user|>",  # one of its three
    "HuggingFaceTB-SmolLM3-3B": "<|im_end|>",
    "Kimi-K2-Instruct": "<|im_end|>",
    "LFM2-8B-A1B": "<|im_end|>",
    "MiniMax-M2": "[e~[",
    "NVIDIA-Nemotron-Nano-v2": "<SPECIAL_12>",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "<|im_end|>",
    "Qwen-QwQ-32B": "<|im_end|>",
    "Qwen-Qwen2.5-7B-Instruct": "<|im_end|>",
    "Qwen-Qwen3-0.6B": "<|im_end|>",
    "deepseek-ai-DeepSeek-V3.1": "<｜end▁of▁sentence｜>",
    "google-gemma-2-2b-it": "<end_of_turn>",
    "google-gemma-4-31B-it": "<turn|>",
    "ibm-granite-granite-3.3-2B-Instruct": "<|end_of_text|>",
    "llama-cpp-rwkv-world": None,  # ends a turn by an empty line
    "meetkai-functionary-medium-v3.2": "<|eot_id|>",
    "meta-llama-Llama-3.1-8B-Instruct": "<|eot_id|>",
    "microsoft-Phi-3.5-mini-instruct": "<|end|>",
    "mistralai-Mistral-Nemo-Instruct-2407": "</s>",
    "openai-gpt-oss-120b": "<|return|>",  # <|end|> only ends one of a turn's channels
    "upstage-Solar-Open-100B": None,  # <|end|> ends the thinking, too
}


def added_tokens(source):
    """What looks like a token of its own in the template; as if all were special."""
    return dict.fromkeys([*TAGS.findall(source), *SPECIAL.values()], True)


@pytest.mark.parametrize(("name", "token"), EXPECTED.items())
def test_public_templates(name, token):
    source = corpora.template_sources()[name]
    assert find_end_of_turn(ChatTemplate(source, SPECIAL), added_tokens(source)) == token


LOOP = "{% for m in messages %}BODY{% endfor %}"


@pytest.mark.parametrize(
    ("body", "tokens", "found"),
    [
        ("<u>{{ m.content }}<e>\n", {"<e>": True, "<u>": True}, "<e>"),
        ("<u>{{ m.content }}<e>\n", {"<e>": False, "<u>": True}, "<e>"),
        (
            "{{ m.content }}{% if m.role == 'assistant' %}<close><e>{% endif %}",
            {"<e>": True, "<close>": False},
            "<e>",
        ),
        ("{{ m.content }}<ee>", {"<e": True, "<ee>": True}, "<ee>"),
        ("{{ m.content }}\n\n", {"\n\n": False, "<e>": True}, None),
        ("{{ m.content }}<e>", {}, None),
        ("{{ raise_exception('no') }}", {"<e>": True}, None),
        ("{{ m.content | upper }}<e>", {"<e>": True}, None),
        ("{% if", {"<e>": True}, None),
        ("{{ tools | length }}{{ m.content }}<e>", {"<e>": True}, "<e>"),
        (
            "<u>{{ m.content }}{% if not loop.last %}<e>{% else %}<last>{% endif %}",
            {"<u>": True, "<e>": True, "<last>": True},
            "<last>",
        ),
        (
            "{% if m.reasoning %}<t>{{ m.reasoning }}<e>{% endif %}{{ m.content }}<e><stop>",
            {"<t>": True, "<e>": True, "<stop>": True},
            "<stop>",
        ),
    ],
)
def test_small_templates(body, tokens, found):
    template = ChatTemplate(LOOP.replace("BODY", body), {})
    assert find_end_of_turn(template, tokens) == found
