"""T5 (arXiv:1910.10683) and its later forms: v1.1, Flan-T5."""

from ...runtime.errors import InputError
from ..config import Norm
from ..encoder_config import Seq2SeqConfig, StackConfig
from ..families.common.reader import ConfigReader
from ..families.common.weights import Weights, drop, rename
from .common import SEARCH, activation, drop_copies, ignore, relative_bias


def read_config(reader: ConfigReader) -> Seq2SeqConfig:
    """Translate a T5 config.json."""
    name = reader.take("feed_forward_proj", str, "relu")
    gate, _, last = name.rpartition("-")
    if gate not in ("", "gated"):
        raise InputError(f"config.json has feed_forward_proj = {name!r}; expected gated-NAME, NAME")
    # "gated-gelu" has always meant the approximation.
    act = "gelu_new" if name == "gated-gelu" else last
    reader.only("dense_act_fn", act)
    reader.only("is_gated_act", bool(gate))
    reader.only("is_decoder", False)
    # Relative positions have no end; what was trained on is only told.
    ignore(reader, "n_positions", *SEARCH)
    hidden, layers = reader.positive("d_model", 512), reader.positive("num_layers", 6)
    buckets = reader.positive("relative_attention_num_buckets", 32)
    distance = reader.positive("relative_attention_max_distance", 128)
    common = {
        "hidden_size": hidden,
        "heads": reader.positive("num_heads", 8),
        "head_dim": reader.positive("d_kv", 64),
        "feed_forward": reader.positive("d_ff", 2048),
        "norm": Norm(reader.take("layer_norm_epsilon", float, 1e-6)),
        "placement": "pre",
        "activation": activation(act, "feed_forward_proj"),
        "gated": bool(gate),
        "bias": False,
        "scale": 1.0,
    }
    encoder = StackConfig(
        layers=layers, relative=relative_bias(buckets, distance, bidirectional=True), **common
    )
    decoder = StackConfig(
        layers=reader.positive("num_decoder_layers", layers),
        relative=relative_bias(buckets, distance, bidirectional=False),
        causal=True,
        crossing=True,
        **common,
    )
    # Older files say by `tie_word_embeddings` whether the decoder's output is scaled.
    tied = reader.take("tie_word_embeddings", bool, True)
    scaled = reader.take("scale_decoder_outputs", bool, tied)
    pad = reader.take("pad_token_id", int, 0)
    return Seq2SeqConfig(
        family="t5",
        vocab_size=reader.positive("vocab_size", 32128),
        encoder=encoder,
        decoder=decoder,
        start_token=reader.take("decoder_start_token_id", int, pad),
        head_scale=hidden**-0.5 if scaled else 1.0,
    )


def convert(weights: Weights, config: Seq2SeqConfig) -> Weights:
    """T5 numbers the parts of a block; the MLP is the last of them."""
    weights = drop_copies(
        weights, "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
    )
    bias = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
    return rename(
        drop(weights, bias),  # an early mistake that public files still hold
        (r"\.block\.0\.layer\.0\.SelfAttention\.relative_attention_bias\.", ".relative_bias."),
        (r"\.block\.", ".layers."),
        (r"\.layer\.0\.SelfAttention\.([qkvo])\.", r".self_attn.\1_proj."),
        (r"\.layer\.0\.layer_norm\.", ".self_attn_norm."),
        (r"\.layer\.1\.EncDecAttention\.([qkvo])\.", r".cross_attn.\1_proj."),
        (r"^(decoder\..*)\.layer\.1\.layer_norm\.", r"\1.cross_attn_norm."),
        (r"\.layer\.[12]\.layer_norm\.", ".mlp_norm."),
        (r"\.layer\.[12]\.DenseReluDense\.wi_0\.", ".mlp.gate_proj."),
        (r"\.layer\.[12]\.DenseReluDense\.wi(_1)?\.", ".mlp.up_proj."),
        (r"\.layer\.[12]\.DenseReluDense\.wo\.", ".mlp.down_proj."),
        (r"\.final_layer_norm\.", ".norm."),
    )
