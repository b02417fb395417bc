"""From a prompt and the options that a user gave to one reply."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..runtime.constraints import Constraint
from ..runtime.engine import Progress
from ..runtime.errors import InputError
from ..runtime.generator import Chunk, Generator
from ..runtime.prompt_cache import PromptCache
from ..runtime.sampling import SamplingParams
from .models import Model

DEFAULT_MAX_TOKENS = 1024  # tokens of a reply, fewer where the context ends before
_RECOMMENDED = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")
_FILTERS = {"top_k", "top_p", "min_p", "typical_p", "xtc_probability"}


def sampling_params(
    generation_config: Mapping[str, Any], given: Mapping[str, Any]
) -> SamplingParams:
    """What the user gave, over what the model's authors recommend.

    `generation_config.json` counts when it asks for sampling: `do_sample`, or a temperature and no
    word on it; its repetition penalty always counts. A filter given without a temperature samples
    at 1, since it would do nothing at 0. Raises InputError for a value out of range.
    """
    params = SamplingParams(**given)
    recommended = {
        name: generation_config[name]
        for name in _RECOMMENDED
        if generation_config.get(name) is not None
    }
    if not generation_config.get("do_sample", "temperature" in recommended):
        recommended = {n: v for n, v in recommended.items() if n == "repetition_penalty"}
    elif "temperature" not in recommended:
        recommended["temperature"] = 1.0
    params = replace(params, **{n: v for n, v in recommended.items() if n not in given})
    if params.temperature == 0 and "temperature" not in given and _FILTERS & given.keys():
        params = replace(params, temperature=1.0)
    return params


def as_prompt(
    generator: Generator, text: str, system: str | None = None, raw: bool = False
) -> str | list[dict[str, str]]:
    """The text itself, or a conversation of one turn if the model is made for chat.

    Raises InputError for a system prompt where there is no conversation.
    """
    if raw or generator.tokenizer.chat_template is None:
        if system is not None:
            why = "a raw prompt" if raw else "a model without a chat template"
            raise InputError(f"{why} has no place for a system prompt; put it into the prompt")
        return text
    messages = [] if system is None else [{"role": "system", "content": system}]
    return [*messages, {"role": "user", "content": text}]


def stream_reply(
    model: Model,
    prompt: str | Sequence[Mapping[str, Any]],
    given: Mapping[str, Any],
    *,
    constraint: Constraint | None = None,
    shown: Collection[str] = (),
    cache: PromptCache | None = None,
    progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Iterator[Chunk]:
    """Chunks of the reply to `prompt`, sampled as `sampling_params` says.

    Without `max_tokens` in `given`, a reply ends after DEFAULT_MAX_TOKENS or with the context.
    The other arguments, and what is raised, are as `Generator.stream` has them.
    """
    generator = model.generator
    params = sampling_params(model.generation_config, given)
    tokens = generator.encode(prompt)
    room = generator.engine.info.context - len(tokens)
    if params.max_tokens is None and room > DEFAULT_MAX_TOKENS:
        params = replace(params, max_tokens=DEFAULT_MAX_TOKENS)
    return generator.stream(
        tokens,
        params,
        constraint=constraint,
        shown=shown,
        cache=cache,
        progress=progress,
        should_stop=should_stop,
    )
