"""A conversation: its messages, and the KV cache of what has been said."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...runtime.engine import Progress
from ...runtime.errors import ContextError, InputError
from ...runtime.generator import Chunk
from ...runtime.overflow import newest_turns
from ...runtime.prompt_cache import PromptCache
from ..models import Model
from ..reasoning import Marks, Reasoning, ReasoningSplitter, find_marks
from ..reply import sampling_params, stream_reply
from ..structured import Grammar, TokenConstraint, constraint_for
from .messages import (
    Message,
    assistant_message,
    for_template,
    last_turn,
    user_message,
    without_old_passages,
)

_MARK_TOKENS = 32  # at the end of a prompt, where it may have begun the thinking
_CHARS_PER_TOKEN = 16  # of text, at most
_NO_TURN = "nothing has been said yet; type a message first"


@dataclass(frozen=True)
class ReplyChunk(Chunk):
    """A piece of a reply. `text` belongs to the answer, `reasoning` to what precedes it."""

    reasoning: str = ""
    reasoning_tokens: int = 0  # so far


@dataclass(frozen=True)
class Exchange:
    """A reply and what the model read before it, as tokens."""

    reply: Message
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]  # of the reply


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
        self.sampling = dict(sampling or {})
        self.messages: list[Message] = []
        self.dropped = 0  # messages at the beginning that the model no longer gets
        self.grammar: Grammar | None = None  # what replies are held to
        self._constraint: TokenConstraint | None = None
        self._under_way: list[Message] = []  # `messages` and the turn that is being answered
        self._written: Exchange | None = None  # the last reply, unless it was loaded
        self.use(model)
        self.system = system

    def use(self, model: Model) -> None:
        """Go on with another model; what has been said stays. Raises InputError as the constructor
        does, and then nothing has changed.
        """
        if model.generator.tokenizer.chat_template is None:
            raise InputError(
                f"{model.generator.engine.info.model} has no chat template, so it is not made for "
                "chat; use `pippin generate`"
            )
        sampling_params(model.generation_config, self.sampling)
        self._constraint = _constraint(model, self.grammar)
        self.model = model
        self._marks = find_marks(model.generator.tokenizer.chat_template)
        self.cache = PromptCache(model.generator.engine)
        self._written = None  # in the other model's tokens
        self.dropped = 0  # another context may have room for all

    def hold_to(self, grammar: Grammar | None) -> None:
        """Hold the replies from now on to `grammar`; None sets them free.

        Raises InputError when the model's tokenizer cannot be used for that.
        """
        self._constraint, self.grammar = _constraint(self.model, grammar), grammar

    @property
    def system(self) -> str | None:
        """The system prompt."""
        has_one = self.messages and self.messages[0]["role"] == "system"
        return self.messages[0]["content"] if has_one else None

    @system.setter
    def system(self, text: str | None) -> None:
        rest = self.messages[1:] if self.system is not None else self.messages
        first = [] if text is None else [{"role": "system", "content": text}]
        self.messages = [*first, *rest]

    @property
    def transcript(self) -> list[Message]:
        """The messages; while a reply is under way, with its turn, as far as it has been said."""
        return self._under_way or self.messages

    @property
    def last_message(self) -> Message:
        """The user message of the last turn. Raises InputError when there is none."""
        turn = last_turn(self.messages)
        if turn is None:
            raise InputError(_NO_TURN)
        return self.messages[turn]

    @property
    def last_reply(self) -> str | None:
        """What the model said last."""
        replies = [m["content"] for m in self.messages if m["role"] == "assistant"]
        return replies[-1] if replies else None

    def last_exchange(self) -> Exchange:
        """The last reply in tokens: those that were written, or of a reply that was loaded those
        that its text is encoded in. Raises InputError when there is none.
        """
        last = self.messages[-1] if self.messages else None
        if last is None or last["role"] != "assistant":
            raise InputError("there is no reply yet; type a message first")
        if self._written is not None and self._written.reply is last:
            return self._written
        tokenizer = self.model.generator.tokenizer
        prompt = self._encode(self._sent(self.messages[:-1]))
        tokens = tokenizer.encode(last["content"], add_special_tokens=False)
        return Exchange(last, tuple(prompt), tuple(tokens))

    @property
    def context(self) -> int:
        """The model's context, in tokens."""
        return self.model.generator.engine.info.context

    def fits_share(self, text: str) -> bool:
        """Whether a text takes no more than a quarter of the context: what goes with one message
        must leave room for the conversation.
        """
        room = self.context // 4
        too_long = len(text) > room * _CHARS_PER_TOKEN  # and need not be encoded to be counted
        return not too_long and len(self.model.generator.tokenizer.encode(text)) <= room

    def used_tokens(self) -> int:
        """Tokens that the conversation takes of the context, before anything more is said."""
        if last_turn(self.messages) is None:
            return 0
        try:
            return len(self._encode(self._sent(self.messages)))
        except InputError:  # a template may refuse a conversation that ends with a reply
            return len(self.cache.tokens)

    def set_sampling(self, name: str, value: Any) -> None:
        """Set a field of `SamplingParams`; None takes it back. Raises InputError: out of range."""
        changed = {k: v for k, v in self.sampling.items() if k != name}
        self.sample_as(changed if value is None else changed | {name: value})

    def sample_as(self, sampling: Mapping[str, Any]) -> None:
        """Set all of the given fields anew. Raises InputError: a value is out of range."""
        sampling_params(self.model.generation_config, sampling)
        self.sampling = dict(sampling)

    def reply(
        self,
        text: str,
        *,
        attachments: Sequence[Mapping[str, Any]] = (),
        seed: int | None = None,
        progress: Progress | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Iterator[ReplyChunk]:
        """Chunks of the reply to the user's `text` and the files with it.

        Both are kept in `messages`, the reply as far as it was said when it was stopped or the
        iterator closed; a turn that ended before a word was said is forgotten. `seed` holds for
        this reply alone. Raises InputError for an empty text, ContextError when the conversation
        has become too long.
        """
        if not text:
            raise InputError("the message is empty; give at least one character")
        asked = [*self.messages, user_message(text, attachments)]
        prompt = self._encode(self._sent(asked))
        marks = self._marks if self._constraint is None else None  # what is held does not think
        chunks = stream_reply(
            self.model,
            prompt,
            self.sampling if seed is None else self.sampling | {"seed": seed},
            constraint=self._constraint,
            shown=marks.shown if marks else (),
            cache=self.cache,
            progress=progress,
            should_stop=should_stop,
        )
        return self._keep(asked, prompt, chunks, self._splitter(marks, prompt))

    def undo(self) -> Message:
        """Forget the last turn; its user message. Raises InputError when there is none."""
        message, turn = self.last_message, last_turn(self.messages)
        self.messages = self.messages[:turn]
        self.dropped = min(self.dropped, turn)
        return message

    def clear(self) -> None:
        """Forget all turns; the system prompt stays."""
        self.messages, self.dropped = self.messages[: self.system is not None], 0

    def drop_oldest(self, text: str, attachments: Sequence[Mapping[str, Any]] = ()) -> int:
        """Stop sending the oldest turns, until `text` and a reply fit; how many messages that are.

        They stay in `messages`. A quarter of the context is freed at least, since each drop has
        the rest read anew. Raises ContextError when `text` alone does not fit.
        """
        asked = self._sent([*self.messages, user_message(text, attachments)])
        room = max(self.sampling.get("max_tokens") or 0, self.context // 4)
        kept, tokens = newest_turns(asked, self._encode, room, self.context)
        if len(tokens) >= self.context:
            raise ContextError(
                f"the message alone has {len(tokens):,} tokens with what the model must be told, "
                f"and the context {self.context:,}; shorten it"
            )
        gone = len(asked) - len(kept)
        self.dropped = max(self.dropped, int(self.system is not None)) + gone
        return gone

    def _sent(self, messages: list[Message]) -> list[Message]:
        """Without those that were dropped and the passages of earlier ones; the system prompt is
        always sent.
        """
        system = messages[: self.system is not None]
        return without_old_passages([*system, *messages[max(self.dropped, len(system)) :]])

    def _encode(self, messages: Sequence[Message]) -> list[int]:
        return self.model.generator.encode(for_template(messages))

    def _splitter(self, marks: Marks | None, prompt: list[int]) -> ReasoningSplitter | None:
        if marks is None:
            return None
        tokenizer = self.model.generator.tokenizer
        end = tokenizer.decode(prompt[-_MARK_TOKENS:], skip_special_tokens=False)
        return marks.splitter(end)

    def _keep(
        self,
        asked: list[Message],
        prompt: list[int],
        chunks: Iterator[Chunk],
        splitter: ReasoningSplitter | None,
    ) -> Iterator[ReplyChunk]:
        said, thought, reason, finished = "", "", "cancelled", False
        tokens: list[int] = []
        self._under_way = asked
        try:
            for chunk in _told_apart(chunks, splitter):
                said, thought = said + chunk.text, thought + chunk.reasoning
                tokens += chunk.tokens
                reason = chunk.finish_reason or reason
                finished = chunk.finish_reason not in (None, "cancelled")
                self._under_way = [*asked, assistant_message(said, thought, reason)]
                yield chunk
        finally:
            self._under_way = []
            chunks.close()
            if said or thought or finished:
                reply = assistant_message(said, thought, reason)
                self.messages = [*asked, reply]
                self._written = Exchange(reply, tuple(prompt), tuple(tokens))


def _told_apart(
    chunks: Iterator[Chunk], splitter: ReasoningSplitter | None
) -> Iterator[ReplyChunk]:
    """The chunks, with the thinking of those that the splitter finds to be that."""
    tokens, answered = 0, False
    for chunk in chunks:
        text, thought = chunk.text, ""
        if splitter is not None:
            events = splitter.feed(chunk.text)
            if chunk.finish_reason is not None:
                events += splitter.finish()
            thought = "".join(event.text for event in events if isinstance(event, Reasoning))
            text = "".join(event.text for event in events if not isinstance(event, Reasoning))
        answered = answered or bool(text)
        tokens += 0 if answered else len(chunk.tokens)
        yield ReplyChunk(
            text, chunk.tokens, chunk.finish_reason, chunk.stats, thought, tokens if splitter else 0
        )


def _constraint(model: Model, grammar: Grammar | None) -> TokenConstraint | None:
    return None if grammar is None else constraint_for(model.generator, grammar)
