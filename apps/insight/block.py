"""The block in numbers: where parameters, arithmetic and memory go, for one model at one length.

Everything follows from the config; no weight is read. A floating-point operation (FLOP) is one
multiplication or one addition. Those of products are counted, as everybody does; norms,
activations, softmax and rotation are not.

Shapes: S tokens · N layers · H query heads · K key/value heads · D head_dim · E hidden size ·
F feed-forward size · V vocabulary · W window.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING

from ...mlx_model.checkpoints.checkpoint import open_checkpoint
from ...mlx_model.config import Experts, ModelConfig, Norm
from ...mlx_model.families import read_family
from ...runtime.errors import InputError
from ...runtime.layouts import read_layout
from ..graph_costs import LayerCost
from ..models import has_mlx, is_exported

if TYPE_CHECKING:
    from ...runtime.engine import Engine

PARTS = ("embedding", "attention", "mlp", "norms", "head")
_KV_BYTES = {"fp32": 4, "fp16": 2, "int8": 1}  # of a number; int8's scales are the graph's
_SCORE_BYTES = 4  # scores and their softmax are float32
_NORMS = {"pre": 2, "output": 2, "sandwich": 4, "parallel": 1, "parallel_two": 2}  # of a block
_FLOPS = 2  # of a weight: a multiplication and an addition


@dataclass(frozen=True)
class Flops:
    """Floating-point operations for one token, all layers together."""

    projections: int  # to q, k and v, and of attention's output
    scores: int  # queries with keys and weights with values, for the last of S tokens
    mean_scores: float  # the same, the mean over S tokens that each see what is before them
    mlp: int  # of experts, those that a token passes, and the router
    head: int  # only for tokens whose logits are wanted

    @property
    def total(self) -> int:
        """For the last of S tokens, logits included."""
        return self.projections + self.scores + self.mlp + self.head


@dataclass(frozen=True)
class KeyValueBytes:
    """The KV cache, all layers, every token kept."""

    dtype: str  # "fp32", "fp16" or "int8"; or the backend, for what a loaded engine says
    per_token: int
    total: int  # of S tokens; an engine may keep a window's alone


@dataclass(frozen=True)
class Tile:
    """What the prefill kernel holds of keys, values and scores at any time, whatever S is."""

    dtype: str  # "fp32" or "fp16"
    queries: int  # rows of a tile
    keys: int  # of a block, that the tile meets at a time
    memory: int  # bytes of threadgroup memory: the tile's queries, and keys or values
    scores: int  # bytes, in registers
    refused: str | None  # why the kernel does not serve such heads


@dataclass(frozen=True)
class BlockNumbers:
    """One model at a length of S tokens."""

    model: str
    config: ModelConfig
    length: int  # S
    parameters: dict[str, int]  # by part, in the order of PARTS; a tied head is the embedding
    flops: Flops
    kv: tuple[KeyValueBytes, ...]  # fp32, fp16, int8, and the engine's own when there is one
    scores_layer: int  # bytes of H × S × S float32 scores, which unfused attention writes
    scores_all: int  # the same, all layers
    row_sums: int  # bytes of the log-sum-exp [H, S], all that a fused layer may keep of them
    tiles: tuple[Tile, ...]  # of flash attention; empty without MLX, which the kernels are for


def read_block(
    path: Path, name: str, length: int | None = None, engine: "Engine | None" = None
) -> BlockNumbers:
    """The numbers of the checkpoint or exported folder at `path`, at `length` tokens.

    None is the longest length that the model, or the loaded `engine`, takes. Raises InputError
    when `path` is no model or of an unknown family, and when the length is out of range.
    """
    config = _read_config(path)
    context = engine.info.context if engine else config.context
    length = context if length is None else length
    if not 1 <= length <= context:
        raise InputError(
            f"the numbers for {length} tokens were asked for; {name} takes 1 to {context}"
        )
    return block_numbers(config, name, length, engine)


def block_numbers(
    config: ModelConfig, name: str, length: int, engine: "Engine | None" = None
) -> BlockNumbers:
    """The numbers of a decoder of that `config` at `length` tokens."""
    scores = config.heads * length * length * _SCORE_BYTES
    return BlockNumbers(
        model=name,
        config=config,
        length=length,
        parameters=count_parts(config),
        flops=count_flops(config, length),
        kv=tuple(_kv_bytes(config, length, engine)),
        scores_layer=scores,
        scores_all=config.layers * scores,
        row_sums=config.heads * length * _SCORE_BYTES,
        tiles=tuple(_tiles(config, length)) if has_mlx() else (),
    )


def count_parts(config: ModelConfig) -> dict[str, int]:
    """Parameters by part, all layers; norms of q and k count as norms, a router as MLP."""
    hidden, heads, groups = config.hidden_size, config.heads, config.kv_heads
    width, shared = heads * config.head_dim, groups * config.head_dim
    attention = _projections(config)
    attention += (width + 2 * shared) * config.attention_bias + hidden * config.output_bias
    attention += heads * config.sinks
    norms = _NORMS[config.placement] * _norm(config.norm, hidden) + _head_norms(config)
    once = 1 + config.embedding_norm  # the last norm, and one after the embedding
    mlp = sum(
        _experts(config, block.experts)
        if block.experts
        else _mlp(config, config.feed_forward, config.mlp_bias)
        for block in config.blocks
    )
    head = config.vocab_size * (hidden + config.head_bias)
    return {
        "embedding": (config.vocab_size + config.learned_positions) * hidden,
        "attention": config.layers * attention,
        "mlp": mlp,
        "norms": config.layers * norms + once * _norm(config.norm, hidden),
        "head": 0 if config.tie_embeddings else head,
    }


def count_flops(config: ModelConfig, length: int) -> Flops:
    """For a token after `length` − 1 others, with a window for the last W keys alone."""
    layers = _layer_costs(config, 1)
    return Flops(
        projections=_FLOPS * config.layers * _projections(config),
        scores=_FLOPS * sum(int(cost.multiplications * cost.keys(length)) for cost in layers),
        mean_scores=_FLOPS
        * fsum(cost.multiplications * _mean_keys(cost.window, length) for cost in layers),
        mlp=_FLOPS * sum(_active(config, block.experts) for block in config.blocks),
        head=_FLOPS * config.hidden_size * config.vocab_size,
    )


def _read_config(path: Path) -> ModelConfig:
    exported = is_exported(path)
    source = read_layout(path).config if exported else open_checkpoint(path, tokenizer=False).config
    return read_family(source).config


def _layer_costs(config: ModelConfig, size: int) -> list[LayerCost]:
    """Of each layer's attention; a number of the cache has `size` bytes."""
    return [
        LayerCost(
            bytes=2 * config.kv_heads * config.head_dim * size,
            multiplications=2 * config.heads * config.head_dim,
            window=block.window,
        )
        for block in config.blocks
    ]


def _mean_keys(window: int | None, length: int) -> float:
    """Keys that a token of `length` sees, on average: min(i, W) for the i-th."""
    full = min(length, window or length)  # tokens that see all before them
    return (full * (full + 1) / 2 + (length - full) * full) / length


def _kv_bytes(config: ModelConfig, length: int, engine: "Engine | None") -> Iterable[KeyValueBytes]:
    for dtype, size in _KV_BYTES.items():
        per_token = sum(cost.bytes for cost in _layer_costs(config, size))
        yield KeyValueBytes(dtype, per_token, per_token * length)
    if engine:
        info = engine.info
        yield KeyValueBytes(info.backend, info.kv_bytes_per_token, engine.memory_needed(length))


def _tiles(config: ModelConfig, length: int) -> Iterable[Tile]:
    import mlx.core as mx

    from ...kernels.prefill import QUERIES, block_keys, tile_bytes, unsupported

    for dtype, kind in (("fp32", mx.float32), ("fp16", mx.float16)):
        keys = block_keys(config.head_dim)
        yield Tile(
            dtype=dtype,
            queries=QUERIES,
            keys=keys,
            memory=tile_bytes(kind, config.head_dim),
            scores=QUERIES * keys * _SCORE_BYTES,
            refused=unsupported(config.attention(0), kind, config.head_dim, length, length),
        )


def _projections(config: ModelConfig) -> int:
    """Weights of q, k, v and the output in one layer."""
    width = 2 * (config.heads + config.kv_heads) * config.head_dim
    return config.hidden_size * width


def _norm(norm: Norm, size: int) -> int:
    return size * (1 + norm.bias)


def _head_norms(config: ModelConfig) -> int:
    """Of q and of k in one layer."""
    if config.head_norm is None:
        return 0
    one = config.head_norm.over == "head"
    heads = 2 if one else config.heads + config.kv_heads
    return _norm(config.head_norm.norm, heads * config.head_dim)


def _mlp(config: ModelConfig, width: int, bias: bool) -> int:
    inner = 1 + config.gated  # products from E to F
    return (inner + 1) * config.hidden_size * width + bias * (inner * width + config.hidden_size)


def _experts(config: ModelConfig, experts: Experts) -> int:
    """All of them, their router, and what all tokens pass."""
    hidden, width = config.hidden_size, experts.feed_forward
    one = 3 * hidden * width + experts.bias * (2 * width + hidden)
    router = experts.count * (hidden + experts.router_bias + experts.correction)
    shared = _mlp(config, experts.shared, config.mlp_bias) if experts.shared else 0
    return experts.count * one + router + shared + hidden * experts.shared_gate


def _active(config: ModelConfig, experts: Experts | None) -> int:
    """Weights of an MLP that one token meets in products."""
    if experts is None:
        return _mlp(config, config.feed_forward, bias=False)
    chosen = 3 * experts.per_token * experts.feed_forward + experts.count + experts.shared_gate
    shared = _mlp(config, experts.shared, bias=False) if experts.shared else 0
    return config.hidden_size * chosen + shared
