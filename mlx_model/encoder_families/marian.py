"""Marian's translators: the transformer of arXiv:1706.03762, post-norm, sinusoidal positions."""

import mlx.core as mx

from ..config import Norm
from ..encoder_config import Seq2SeqConfig, StackConfig
from ..families.common.reader import ConfigReader
from ..families.common.weights import Weights, drop, rename
from .common import SEARCH, activation, drop_copies, head_dim, ignore, sinusoids

_EPS = 1e-5  # no key says otherwise
_OTHER_BLOCKS = ("normalize_before", "normalize_embedding", "add_final_layer_norm")


def read_config(reader: ConfigReader) -> Seq2SeqConfig:
    """Translate a Marian config.json."""
    vocab_size = reader.positive("vocab_size")
    reader.only("share_encoder_decoder_embeddings", True)
    reader.only("decoder_vocab_size", vocab_size)
    reader.only("tie_word_embeddings", True)
    # Keys of Bart's that Marian's first files carry, and what they stand at there.
    reader.only("is_decoder", False)
    reader.only("static_position_embeddings", True)
    for key in (*_OTHER_BLOCKS, "force_bos_token_to_be_generated"):
        reader.only(key, False)
    ignore(reader, "_num_labels", "extra_pos_embeddings", "num_hidden_layers", "add_bias_logits")
    ignore(reader, *SEARCH)
    hidden = reader.positive("d_model", 1024)
    scaled = reader.take("scale_embedding", bool, False)
    name = reader.take("activation_function", str, "gelu")
    positions = reader.positive("max_position_embeddings", 1024)
    stacks = []
    for side in ("encoder", "decoder"):
        heads = reader.positive(f"{side}_attention_heads", 16)
        stack = StackConfig(
            hidden_size=hidden,
            heads=heads,
            head_dim=head_dim(hidden, heads),
            feed_forward=reader.positive(f"{side}_ffn_dim", 4096),
            layers=reader.positive(f"{side}_layers", 12),
            norm=Norm(_EPS, kind="layer", bias=True),
            activation=activation(name, "activation_function"),
            embedding_multiplier=hidden**0.5 if scaled else 1.0,
            positions=positions,
            causal=side == "decoder",
            crossing=side == "decoder",
        )
        stacks.append(stack)
    return Seq2SeqConfig(
        family="marian",
        vocab_size=vocab_size,
        encoder=stacks[0],
        decoder=stacks[1],
        start_token=reader.take("decoder_start_token_id", int, vocab_size - 1),
        logits_bias=True,
    )


def convert(weights: Weights, config: Seq2SeqConfig) -> Weights:
    """Tables of positions follow from the config, whether they are stored or not."""
    weights = rename(weights, (r"^model\.", ""))
    weights = drop_copies(
        weights, "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
    )
    weights = rename(
        drop(weights, r"(encoder|decoder)\.embed_positions\.weight"),
        (r"^final_logits_bias$", "logits_bias.bias"),
        (r"\.out_proj\.", ".o_proj."),
        (r"\.encoder_attn\.", ".cross_attn."),
        (r"\.encoder_attn_layer_norm\.", ".cross_attn_norm."),
        (r"\.self_attn_layer_norm\.", ".self_attn_norm."),
        (r"\.final_layer_norm\.", ".mlp_norm."),
        (r"\.fc1\.", ".mlp.up_proj."),
        (r"\.fc2\.", ".mlp.down_proj."),
    )
    bias = weights.get("logits_bias.bias", mx.zeros((config.vocab_size,)))
    weights["logits_bias.bias"] = bias.flatten()
    for side, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        table = mx.array(sinusoids(stack.positions, stack.hidden_size))
        weights[f"{side}.embed_positions.weight"] = table
    return weights
