"""From the fields that several interfaces share to what the scheduler takes."""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...runtime.breakers import resolve_breakers
from ...runtime.constraints import Constraint
from ...runtime.engine import check_tokens
from ...runtime.errors import InputError
from ...runtime.sampling import SamplingParams
from ..models import Model
from ..reply import DEFAULT_MAX_TOKENS, sampling_params
from .errors import ApiError
from .fields import Fields
from .run import Ask, TokenLogprob

if TYPE_CHECKING:
    from ...runtime.tokenizer import Tokenizer

MAX_STOPS = 16
MAX_COUNT = 16  # replies to one prompt
MAX_TOP_LOGPROBS = 20
# Sampling beyond OpenAI's, under the names of `SamplingParams`.
_OWN = (
    "top_k",
    "min_p",
    "typical_p",
    "xtc_probability",
    "xtc_threshold",
    "repetition_penalty",
    "penalty_last_n",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "ignore_eos",
)


def read_sampling(fields: Fields) -> dict[str, Any]:
    """The fields of `SamplingParams` that OpenAI's interface has, and our own, as given."""
    given = {
        "temperature": fields.number("temperature", 0, 2),
        "top_p": fields.number("top_p", 0, 1),
        "presence_penalty": fields.number("presence_penalty", -2, 2),
        "frequency_penalty": fields.number("frequency_penalty", -2, 2),
        "seed": fields.integer("seed", -(2**63), 2**64 - 1),
        "stop": read_stop(fields, "stop"),
        "logit_bias": _read_bias(fields),
    } | read_own_sampling(fields)
    if given["seed"] is not None:
        given["seed"] %= 2**64
    return check_sampling(fields, given)


def read_own_sampling(fields: Fields) -> dict[str, Any]:
    """What no interface but ours has."""
    return {name: fields.take(name) for name in _OWN}


def check_sampling(fields: Fields, given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` without what is None. Raises BadField for a value out of range."""
    kept = {name: value for name, value in given.items() if value is not None}
    for name, value in kept.items():
        try:
            SamplingParams(**{name: value})
        except (InputError, TypeError) as error:
            raise fields.bad(name, str(error).removeprefix(f"{name} ")) from None
        if name == "ignore_eos" and not isinstance(value, bool):
            raise fields.bad(name, "expected true or false")
    return kept


def read_stop(fields: Fields, name: str) -> tuple[str, ...] | None:
    """One stop string or a list of them."""
    value = fields.take(name)
    if value is None:
        return None
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(s, str) and s for s in stops):
        raise fields.bad(name, "expected a string or a list of strings, none of them empty")
    if len(stops) > MAX_STOPS:
        raise fields.bad(name, f"has {len(stops)} strings, at most {MAX_STOPS} are looked for")
    return tuple(stops)


def _read_bias(fields: Fields) -> dict[int, float] | None:
    value = fields.mapping("logit_bias")
    if value is None:
        return None
    bias = {}
    for key, item in value.items():
        number = isinstance(item, int | float) and not isinstance(item, bool)
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise fields.bad("logit_bias", f"{key[:30]!r} is no token id")
        if not number or not -100 <= item <= 100:
            raise fields.bad("logit_bias", f"token {key} has no number from -100 to 100")
        bias[int(key)] = float(item)
    return bias


def make_ask(
    model: Model,
    capacity: int,
    tokens: list[int],
    given: Mapping[str, Any],
    *,
    count: int = 1,
    top_logprobs: int | None = None,
    constraint: Constraint | None = None,
    shown: tuple[str, ...] = (),
) -> Ask:
    """What the scheduler takes; sampled as `pippin chat` samples.

    A `max_tokens` that the context has no room for ends with the context. Raises ApiError when
    there is no room for a reply at all, and InputError.
    """
    info = model.generator.engine.info
    check_tokens(tokens, info.vocab_size)
    room = capacity - len(tokens)
    if room < 1:
        raise ApiError(
            400,
            f"the prompt's {len(tokens)} tokens leave no room for a reply in the server's context "
            f"of {capacity} tokens; shorten it, or start the server with a larger --context",
            code="context_length_exceeded",
        )
    params = sampling_params(model.generation_config, given)
    if constraint is not None and params.ignore_eos:
        raise ApiError(
            400, "ignore_eos: does not go with a form that decides on the end", param="ignore_eos"
        )
    for token in params.logit_bias:
        if token >= info.vocab_size:
            raise ApiError(
                400,
                f"logit_bias: token {token} is outside the vocabulary of {info.vocab_size}",
                param="logit_bias",
            )
    params = replace(
        params,
        max_tokens=min(params.max_tokens or DEFAULT_MAX_TOKENS, room),
        seed=secrets.randbits(32) if params.seed is None else params.seed,
        dry_sequence_breakers=resolve_breakers(params, model.generator.tokenizer),
    )
    return Ask(tokens, params, count, top_logprobs, constraint, shown)


def token_entry(tokenizer: "Tokenizer", entry: TokenLogprob) -> dict[str, Any]:
    """A token with its probability and the likeliest ones', as OpenAI's interfaces write it."""
    top = [_token_entry(tokenizer, token, value) for token, value in entry.top]
    return {**_token_entry(tokenizer, entry.token, entry.logprob), "top_logprobs": top}


def _token_entry(tokenizer: "Tokenizer", token: int, logprob: float) -> dict[str, Any]:
    text = tokenizer.token_text(token)
    return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(token_bytes(text))}


def token_bytes(text: str) -> bytes:
    """The bytes of a token's display text, in which <0xE2> stands for part of a character."""
    data, rest = b"", text
    while rest:
        head, mark, tail = rest.partition("<0x")
        data += head.encode("utf-8", "replace")
        if not mark:
            break
        if tail[2:3] == ">" and all(c in "0123456789ABCDEF" for c in tail[:2]):
            data, rest = data + bytes([int(tail[:2], 16)]), tail[3:]
        else:
            data, rest = data + mark.encode(), tail
    return data
