"""Falcon: 7B (one key/value head), 40B (groups of heads) and the ALiBi models of RefinedWeb."""

import math
from dataclasses import replace

import numpy as np

from ...runtime.errors import InputError
from ..config import ModelConfig, Norm
from ..positions import Alibi, Position
from .common.alibi import alibi
from .common.reader import ConfigReader
from .common.rope import RopeDefaults, read_rope
from .common.shape import Shape, read_activation, read_shape, same_blocks
from .common.weights import Weights, rename, split_groups


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a Falcon config.json."""
    grouped = reader.take("new_decoder_architecture", bool, False)
    shape = read_shape(
        reader,
        context=2048,
        hidden_size=reader.spelled("hidden_size", "n_embed"),
        layers=reader.spelled("num_hidden_layers", "n_layer"),
        heads=reader.spelled("num_attention_heads", "n_head"),
        kv_heads_key=reader.spelled("num_kv_heads", "n_head_kv"),
    )
    shape = replace(shape, kv_heads=_kv_heads(reader, shape, grouped))
    reader.only("apply_residual_connection_post_layernorm", False)
    bias = reader.take("bias", bool, False)
    return ModelConfig(
        family="falcon",
        **shape.sizes(),
        feed_forward=reader.positive("ffn_hidden_size", 4 * shape.hidden_size),
        norm=Norm(reader.take("layer_norm_epsilon", float, 1e-5), "layer", bias=True),
        blocks=same_blocks(shape.layers, _position(reader, shape)),
        placement=_placement(reader, grouped),
        activation=read_activation(reader, "activation", "gelu"),
        gated=False,
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        tie_embeddings=reader.take("tie_word_embeddings", bool, True),
    )


def _kv_heads(reader: ConfigReader, shape: Shape, grouped: bool) -> int:
    single = reader.take("multi_query", bool, True)
    if grouped:
        return shape.kv_heads
    if single:
        return 1
    if shape.kv_heads != shape.heads:
        raise InputError(
            f"config.json has num_kv_heads {shape.kv_heads} for {shape.heads} heads; without "
            "new_decoder_architecture Falcon has one key/value head or as many as heads"
        )
    return shape.heads


def _placement(reader: ConfigReader, grouped: bool) -> str:
    parallel = reader.take("parallel_attn", bool, True)
    norms = reader.take("num_ln_in_parallel_attn", int, 2 if grouped else 1)
    if norms not in ((1, 2) if grouped else (1,)) or (grouped and not parallel):
        raise InputError(
            f"config.json has parallel_attn = {parallel} and num_ln_in_parallel_attn = {norms}, "
            f"which no Falcon with new_decoder_architecture = {grouped} has"
        )
    if not parallel:
        return "pre"
    return "parallel_two" if norms == 2 else "parallel"


def _position(reader: ConfigReader, shape: Shape) -> Position:
    """ALiBi is added before the scores are scaled, from slopes that were rounded to bfloat16.

    transformers rounds slope times position too, which at position 1,000 is off by up to 2: noise
    of the type that it computes in, left out here.
    """
    rope = read_rope(reader, RopeDefaults(shape.head_dim, shape.context))
    if not reader.take("alibi", bool, False):
        return rope
    slopes = (_bfloat16(slope) / math.sqrt(shape.head_dim) for slope in alibi(shape.heads).slopes)
    return Alibi(tuple(slopes))


def _bfloat16(value: float) -> float:
    """The nearest number that bfloat16 has, ties to even."""
    bits = int(np.float32(value).view(np.uint32))
    bits += 0x7FFF + (bits >> 16 & 1)
    return float(np.uint32(bits & 0xFFFF0000).view(np.float32))


def convert(weights: Weights, config: ModelConfig) -> Weights:
    """The queries of a key/value head lie before its key and its value."""
    weights = rename(
        weights,
        (r"^transformer\.", ""),
        (r"^word_embeddings\.", "model.embed_tokens."),
        (r"^ln_f\.", "model.norm."),
        (r"^h\.", "model.layers."),
        (r"\.ln_attn\.", ".input_layernorm."),
        (r"\.ln_mlp\.", ".post_attention_layernorm."),
        (r"\.self_attention\.dense\.", ".self_attn.o_proj."),
        (r"\.self_attention\.query_key_value\.", ".self_attn.query_key_value."),
        (r"\.mlp\.dense_h_to_4h\.", ".mlp.up_proj."),
        (r"\.mlp\.dense_4h_to_h\.", ".mlp.down_proj."),
    )
    dim, group = config.head_dim, config.heads // config.kv_heads
    parts = [("q_proj", group * dim), ("k_proj", dim), ("v_proj", dim)]
    return split_groups(weights, "query_key_value", config.kv_heads, parts)
