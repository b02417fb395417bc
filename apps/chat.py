"""A conversation: its messages, and the KV cache of what has been said."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..runtime.engine import Progress
from ..runtime.errors import InputError
from ..runtime.generator import Chunk
from ..runtime.prompt_cache import PromptCache
from .models import Model
from .reply import sampling_params, stream_reply


class ChatSession:
    """Takes the user's turns, gives the model's.

    Each turn renders the whole conversation anew, and computes only what the prompt cache does not
    hold: some templates rewrite earlier turns.
    """

    def __init__(
        self, model: Model, *, system: str | None = None, sampling: Mapping[str, Any] | None = None
    ) -> None:
        """`sampling` holds the fields of `SamplingParams` that the user gave.

        Raises InputError when the model has no chat template or a value is out of range.
        """
        if model.generator.tokenizer.chat_template is None:
            raise InputError(
                f"{model.generator.engine.info.model} has no chat template, so it is not made for "
                "chat; use `pippin generate`"
            )
        self._model, self._sampling = model, dict(sampling or {})
        sampling_params(model.generation_config, self._sampling)
        self._cache = PromptCache(model.generator.engine)
        self.messages: list[dict[str, str]] = []
        if system is not None:
            self.messages.append({"role": "system", "content": system})

    def reply(
        self,
        text: str,
        *,
        progress: Progress | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Iterator[Chunk]:
        """Chunks of the reply to the user's `text`.

        Both are kept in `messages`, the reply as far as it was said when it was stopped or the
        iterator closed; a turn that ended before a word was said is forgotten. Raises InputError
        for an empty text, ContextError when the conversation has become too long.
        """
        if not text:
            raise InputError("the message is empty; give at least one character")
        asked = [*self.messages, {"role": "user", "content": text}]
        chunks = stream_reply(
            self._model,
            asked,
            self._sampling,
            cache=self._cache,
            progress=progress,
            should_stop=should_stop,
        )
        return self._keep(asked, chunks)

    def _keep(self, asked: list[dict[str, str]], chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        said, finished = "", False
        try:
            for chunk in chunks:
                said += chunk.text
                finished = chunk.finish_reason not in (None, "cancelled")
                yield chunk
        finally:
            chunks.close()
            if said or finished:
                self.messages = [*asked, {"role": "assistant", "content": said}]
