"""Which token ends the model's turn, found by rendering its chat template."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .chat_template import ChatTemplate
from .errors import InputError

# Plain words that no template changes and no vocabulary has as one token.
_QUESTION, _REASONING, _ANSWER, _NEXT = "zqxquestion", "zqxreasoning", "zqxanswer", "zqxnext"


def find_end_of_turn(template: ChatTemplate, added_tokens: Mapping[str, bool]) -> str | None:
    """The added token that the template writes at the end of a reply; None when it writes none.

    `added_tokens` says of each whether it is special. A reply that ends the conversation is looked
    at first: inside a conversation, some templates close a turn otherwise. Where that closes
    nothing, the token right after an earlier reply counts (GLM opens the next turn, `<|user|>`).
    A token that also stands between reasoning and answer ends no turn; of several left, one that
    ends the user's turn too is taken, or else the first special one.
    """
    for tools in (None, []):  # templates for tools may not bear having none
        alone = _render(template, tools, _question(), _answer())
        if alone is None:
            continue
        between = set(_tokens(_between(alone, _QUESTION, _ANSWER), added_tokens))
        thinking = _render(template, tools, _question(), _answer(reasoning=_REASONING))
        inner = set(_tokens(_between(thinking or "", _REASONING, _ANSWER), added_tokens))
        closing = _tokens(alone.rpartition(_ANSWER)[2], added_tokens)
        if token := _choose(closing, inner, between, added_tokens):
            return token
        followed = _render(template, tools, _question(), _answer(), _question(_NEXT))
        closing = _run(_between(followed or "", _ANSWER, _NEXT), added_tokens)
        if token := _choose(closing, inner, between, added_tokens):
            return token
    return None


def _question(text: str = _QUESTION) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _answer(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": _ANSWER, **fields}


def _render(template: ChatTemplate, tools: list[Any] | None, *messages: Any) -> str | None:
    try:
        text = template.render(list(messages), tools=tools, add_generation_prompt=False)
    except InputError:
        return None
    return text if _ANSWER in text else None


def _between(text: str, first: str, second: str) -> str:
    """What stands between two words; "" when they do not come in this order."""
    before, found, _ = text.rpartition(second)
    _, also_found, after = before.rpartition(first)
    return after if found and also_found else ""


def _tokens(text: str, added_tokens: Iterable[str]) -> list[str]:
    """The added tokens in a text, in its order; those of white space apart."""
    present = [token for token in added_tokens if token in text and token.strip()]
    if not present:
        return []
    longest_first = sorted(present, key=len, reverse=True)
    return re.findall("|".join(map(re.escape, longest_first)), text)


def _run(text: str, added_tokens: Iterable[str]) -> list[str]:
    """The added tokens that a text begins with, nothing but white space before or between."""
    run = []
    for token in _tokens(text, added_tokens):
        if not text.lstrip().startswith(token):
            break
        run.append(token)
        text = text.lstrip().removeprefix(token)
    return run


def _choose(
    closing: list[str], inner: set[str], between: set[str], added_tokens: Mapping[str, bool]
) -> str | None:
    tokens = [token for token in closing if token not in inner]
    for wanted in (between.__contains__, added_tokens.__getitem__, lambda token: True):
        if found := next(filter(wanted, tokens), None):
            return found
    return None
