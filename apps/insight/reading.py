"""What `pippin explain` finds out about a text: one head step by step, and a reply to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...runtime.engine import Progress
from ..models import Model
from ..reply import as_prompt, sampling_params
from .explanation import (
    DEFAULT_TOP,
    StepReport,
    TokenText,
    View,
    choose_view,
    find_token,
    read_by,
    report_step,
    token_texts,
    traced_apart,
)
from .walkthrough import Walkthrough, walk

if TYPE_CHECKING:
    from ...runtime.generator import Generator


@dataclass(frozen=True)
class Reading:
    """A text, and a reply if one was asked for."""

    generator: "Generator"
    tokens: tuple[TokenText, ...]  # of the text, then of the reply
    prompt_tokens: int  # of them, the text's
    view: View  # the head that `step` and `reads` are of
    step: StepReport
    walk: Walkthrough | None
    # By step of `walk`: the keys of the token whose logits it was chosen from, by falling weight.
    reads: tuple[tuple[tuple[TokenText, float], ...], ...]
    other_graph: bool  # the reply was made by another graph than attention is shown of

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]


def read_text(
    model: Model,
    text: str,
    *,
    chat: bool = False,
    token: str | None = None,
    layer: int | None = None,
    head: int | None = None,
    top: int = DEFAULT_TOP,
    generate: int | None = None,
    sampling: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Reading:
    """Run the model over `text` and report one head; with `generate`, after up to that many tokens.

    `chat` puts the text into the chat template, as `pippin generate` does. `token` is as
    `find_token` takes it, by default the text's last one; `layer` and `head` as `choose_view` does.
    `sampling` is what the user gave of `SamplingParams`. Raises InputError for what is not there,
    a text that does not fit, and a model whose attention cannot be shown.
    """
    generator = model.generator
    asked = as_prompt(generator, text, raw=not chat)
    prompt = generator.encode(asked)
    if generate is None:
        found, tokens = None, prompt
    else:
        params = sampling_params(model.generation_config, sampling or {})
        params = replace(params, max_tokens=generate)
        found = walk(generator, prompt, params, candidates=top, progress=progress)
        tokens = [*prompt, *found.tokens]
    query = len(prompt) - 1 if token is None else find_token(generator.tokenizer, tokens, token)
    texts = token_texts(generator.tokenizer, tokens)
    view = choose_view(generator, tokens, query, layer, head, progress)
    return Reading(
        generator=generator,
        tokens=tuple(texts),
        prompt_tokens=len(prompt),
        view=view,
        step=report_step(texts, view, top),
        walk=found,
        reads=_reads(texts, view, found, top),
        other_graph=found is not None and traced_apart(generator),
    )


def _reads(
    texts: Sequence[TokenText], view: View, found: Walkthrough | None, top: int
) -> tuple[tuple[tuple[TokenText, float], ...], ...]:
    if found is None:
        return ()
    rows = read_by(texts, view, [step.position for step in found.steps], top)
    return tuple(map(tuple, rows))
