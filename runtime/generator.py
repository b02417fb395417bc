"""Text generation on any engine: prompt in, text out, as it is made."""

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .breakers import resolve_breakers
from .constraints import Constraint
from .draft_model import DraftModel
from .engine import Array, Engine, Progress, Session, check_tokens
from .errors import Cancelled, InputError, PippinError
from .overflow import check_overflow, drop_oldest_tokens, drop_oldest_turns, reply_budget
from .prompt_cache import PromptCache
from .prompt_lookup import PromptLookup
from .reply import Reply
from .sampling import Sampler, SamplingParams
from .speculation import LONGEST, Drafter, Speculation

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

# A text, token ids, or a conversation: messages of {"role": …, "content": …}.
Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Stats:
    """What one generation took; tokens and seconds."""

    prompt_tokens: int
    cached_tokens: int  # of the prompt, taken from the prompt cache
    reply_tokens: int  # an end-of-turn token included
    prefill_seconds: float  # up to the first token
    decode_seconds: float  # for all further ones, the caller's own time left out
    seed: int  # with it the same call gives the same text
    drafted_tokens: int  # guessed by prompt lookup or by a draft model
    accepted_tokens: int  # of them, those that the model chose too

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens a second, those from the cache left out; 0 before the first token."""
        return _rate(self.prompt_tokens - self.cached_tokens, self.prefill_seconds)

    @property
    def decode_rate(self) -> float:
        """Reply tokens a second, the first left out; 0 when there is no second."""
        return _rate(self.reply_tokens - 1, self.decode_seconds)


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else 0.0


@dataclass(frozen=True)
class Chunk:
    """A piece of a reply: whole characters, and the tokens taken since the piece before.

    Only the last one has `finish_reason` and `stats`: "stop" (an end-of-turn token), "stop_string",
    "length" (max_tokens or the end of the context) or "cancelled".
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: str | None = None
    stats: Stats | None = None


@dataclass(frozen=True)
class Result:
    """A whole reply; `tokens` are all that were generated, an end-of-turn token included."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    stats: Stats


class Generator:
    """An engine and its tokenizer, and perhaps a smaller model that drafts what this one checks."""

    def __init__(
        self, engine: Engine, tokenizer: "Tokenizer", draft: "Generator | None" = None
    ) -> None:
        """`draft` is a smaller model, on any engine. Raises InputError when it has other tokens."""
        self.engine, self.tokenizer = engine, tokenizer
        self.draft_engine = draft.engine if draft else None
        if draft and not tokenizer.has_tokens_of(draft.tokenizer):
            raise InputError(
                f"{draft.engine.info.model} cannot draft for {engine.info.model}: their tokenizers "
                f"have other tokens ({draft.tokenizer.vocab_size:,} and {tokenizer.vocab_size:,}); "
                "give a smaller model of the same family"
            )

    @classmethod
    def from_folder(
        cls,
        path: Path | str,
        *,
        weights: str | None = None,
        threads: int | None = None,
        precise: bool = False,
        repeatable: bool = False,
    ) -> "Generator":
        """A generator on onnxruntime, from a folder that `pippin export` wrote, or optimum, or
        onnxruntime-genai's model builder.

        `weights` is "fp32", "fp16", "q4", "q4f16" or "int8", and where there is no onnx/ the
        graph's name without .onnx (None: the fastest that is there); `threads` None means one a
        physical core; `precise` takes the graph with float activations and KV cache where there
        is a quicker one; `repeatable` lets what a prompt cache holds change no text of the quicker
        one either (see `OrtEngine`). Raises InputError when the folder cannot be used.
        """
        from .ort_engine import OrtEngine
        from .ort_seq2seq import OrtSeq2SeqEngine, is_exported_seq2seq
        from .tokenizer import Tokenizer

        options = {"weights": weights, "threads": threads}
        if is_exported_seq2seq(path):
            engine = OrtSeq2SeqEngine.from_folder(path, **options)
        else:
            kv = "float" if precise else None
            engine = OrtEngine.from_folder(path, kv=kv, repeatable=repeatable, **options)
        tokenizer = Tokenizer.from_folder(Path(path))
        if tokenizer.vocab_size > engine.info.vocab_size:
            raise InputError(
                f"{Path(path) / 'tokenizer.json'} has {tokenizer.vocab_size:,} tokens, the graph's "
                f"logits have {engine.info.vocab_size:,}; give the tokenizer of this model"
            )
        return cls(engine, tokenizer)

    def encode(
        self,
        prompt: Prompt,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of `prompt`; a conversation ends where the reply begins.

        `tools` and the settings `template` go to the chat template. Raises InputError for an empty
        prompt, and for either of them where there is no conversation.
        """
        if len(prompt) and not isinstance(prompt, str) and isinstance(prompt[0], Mapping):
            tokens = self.tokenizer.encode_chat(
                list(prompt), tools=list(tools) if tools else None, **(template or {})
            )
        elif tools or template:
            raise InputError("tools and template settings need a conversation; this is plain text")
        elif isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt) if prompt else []
        else:
            tokens = [int(token) for token in prompt]
        if not tokens:
            raise InputError("the prompt is empty; give at least one character")
        return tokens

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        cache: PromptCache | None = None,
        progress: Progress | None = None,
        should_stop: Callable[[], bool] | None = None,
        on_overflow: str = "error",
        sequence: int = 0,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: Mapping[str, Any] | None = None,
        constraint: Constraint | None = None,
        shown: Collection[str] = (),
    ) -> Iterator[Chunk]:
        """Chunks of the reply as they are made; the last one says why it ended.

        `cache` keeps the session for the next call, `progress(done, total)` follows the prefill,
        `should_stop` is asked before each chunk of the prompt and each token; closing the iterator
        stops as well. `on_overflow` "drop_oldest" shortens a prompt that does not fit, from its
        beginning: whole turns of a conversation, else tokens. `sequence` numbers replies drawn
        from one seed. `tools` and `template` are those of `encode`. `constraint` says which texts
        the reply may be; `shown` are special tokens that its text shows, such as those around a
        tool call.

        Raises InputError (ContextError when prompt and reply do not fit) here, and PippinError
        while running when the model's logits are all NaN.
        """
        params = params or SamplingParams()
        if constraint is not None and params.ignore_eos:
            raise InputError("ignore_eos does not go with a constraint, which decides on the end")
        check_overflow(on_overflow)
        context, limit = self.engine.info.context, params.max_tokens

        def encode(part: Prompt) -> list[int]:
            return self.encode(part, tools=tools, template=template)

        if on_overflow == "error" or len(prompt) == 0:
            tokens = encode(prompt)
        elif isinstance(prompt[0], Mapping):
            tokens = drop_oldest_turns(prompt, encode, limit, context)
        else:
            tokens = drop_oldest_tokens(encode(prompt), limit, context)
        check_tokens(tokens, self.engine.info.vocab_size)
        params = replace(
            params,
            max_tokens=reply_budget(len(tokens), limit, context),
            seed=secrets.randbits(32) if params.seed is None else params.seed,
            dry_sequence_breakers=resolve_breakers(params, self.tokenizer),
        )
        state = None if constraint is None else constraint.start()
        info = self.engine.info
        sampler = Sampler(params, info.vocab_size, self.engine.xp, tokens, sequence, state)
        run = _Run(self, tokens, params, Reply(params, self.tokenizer, shown), sampler)
        return run.chunks(cache or PromptCache(self.engine), progress, should_stop)

    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Any
    ) -> Result:
        """The whole reply at once; arguments and errors as of `stream`."""
        chunks = list(self.stream(prompt, params, **options))
        return Result(
            text="".join(chunk.text for chunk in chunks),
            tokens=tuple(token for chunk in chunks for token in chunk.tokens),
            finish_reason=chunks[-1].finish_reason,
            stats=chunks[-1].stats,
        )


class _Run:
    """One generation under way."""

    def __init__(
        self,
        generator: Generator,
        prompt: list[int],
        params: SamplingParams,
        reply: Reply,
        sampler: Sampler,
    ) -> None:
        self._generator, self._prompt = generator, prompt
        self._params, self._reply, self._sampler = params, reply, sampler
        self._cached = 0
        self._tokens: list[int] = []
        self._told = 0  # tokens that earlier chunks carried
        self._prefill_seconds = self._decode_seconds = 0.0
        self._speculation: Speculation | None = None

    def chunks(
        self,
        cache: PromptCache,
        progress: Progress | None,
        should_stop: Callable[[], bool] | None,
    ) -> Iterator[Chunk]:
        started = perf_counter()
        session, self._cached = cache.reuse(self._prompt)
        try:
            logits = session.prefill(
                self._prompt[self._cached :], progress=progress, should_stop=should_stop
            )
            steps = self._decode(session, logits, cache)
            try:
                yield from self._replies(steps, started, should_stop)
            finally:
                steps.close()
        except Cancelled:
            yield self._chunk(self._reply.cancel())
        finally:
            cache.record([*self._prompt, *self._tokens])

    def _decode(self, session: Session, logits: Array, cache: PromptCache) -> Iterator[int]:
        info, longest = self._generator.engine.info, self._params.prompt_lookup
        if longest is None:
            longest = LONGEST if info.rows_alike else 0
        drafters: list[Drafter] = [PromptLookup(self._prompt, longest)] if longest else []
        if (draft := self._generator.draft_engine) is not None:
            drafters.append(DraftModel(draft, cache.for_draft(draft), self._prompt, info))
        if not drafters:
            return session.decode(logits, self._sampler)
        self._speculation = Speculation(info, drafters, self._params.max_tokens)
        return self._speculation.decode(session, logits, self._sampler)

    def _replies(
        self, steps: Iterator[int], started: float, should_stop: Callable[[], bool] | None
    ) -> Iterator[Chunk]:
        while self._reply.finish_reason is None:
            if should_stop is not None and should_stop():
                raise Cancelled("generation was stopped")
            token = next(steps)
            if token < 0:
                raise PippinError(
                    f"the model's logits after {len(self._prompt) + len(self._tokens)} tokens are "
                    "all NaN or masked: its weights are damaged, or too large for its number format"
                )
            self._tokens.append(token)
            text = self._reply.add(token)
            self._count_time(perf_counter() - started)
            if text or self._reply.finish_reason is not None:
                yield self._chunk(text)
            started = perf_counter()

    def _count_time(self, seconds: float) -> None:
        if len(self._tokens) == 1:
            self._prefill_seconds = seconds
        else:
            self._decode_seconds += seconds

    def _chunk(self, text: str) -> Chunk:
        tokens, self._told = tuple(self._tokens[self._told :]), len(self._tokens)
        reason = self._reply.finish_reason
        return Chunk(text, tokens, reason, None if reason is None else self._stats())

    def _stats(self) -> Stats:
        return Stats(
            prompt_tokens=len(self._prompt),
            cached_tokens=self._cached,
            reply_tokens=len(self._tokens),
            prefill_seconds=self._prefill_seconds,
            decode_seconds=self._decode_seconds,
            seed=self._params.seed,
            drafted_tokens=self._speculation.drafted_tokens if self._speculation else 0,
            accepted_tokens=self._speculation.accepted_tokens if self._speculation else 0,
        )
