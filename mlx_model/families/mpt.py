"""MPT: ALiBi, LayerNorm without a bias, no biases anywhere."""

from ..config import ModelConfig, Norm
from .common.alibi import alibi
from .common.reader import ConfigReader
from .common.shape import read_shape, same_blocks
from .common.weights import Weights, rename, split


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate an MPT config.json; what attention does stands in `attn_config`."""
    shape = read_shape(
        reader,
        context=2048,
        hidden_size=reader.spelled("d_model", "hidden_size"),
        layers=reader.spelled("n_layers", "num_hidden_layers"),
        heads=reader.spelled("n_heads", "num_attention_heads"),
        context_key="max_seq_len",
    )
    inner = ConfigReader(reader.take("attn_config", dict, {}), "config.json's attn_config")
    inner.only("attn_type", "multihead_attention")
    inner.only("prefix_lm", False)
    inner.only("qk_ln", False)
    inner.only("attn_uses_sequence_id", False)
    inner.only("alibi", True)
    inner.skip("attn_impl")
    bias_max = inner.take("alibi_bias_max", float, 8.0)
    scale, clip = inner.take("softmax_scale", float, None), inner.take("clip_qkv", float, None)
    inner.finish()
    reader.only("no_bias", True)
    reader.only("norm_type", "low_precision_layernorm", "layernorm")
    reader.skip(
        "emb_pdrop",
        "embedding_fraction",  # of the gradient
        "init_config",
        "init_device",
        "learned_pos_emb",  # without meaning beside ALiBi
        "tokenizer_name",
        "verbose",
    )
    return ModelConfig(
        family="mpt",
        **shape.sizes(),
        feed_forward=reader.positive("expansion_ratio", 4) * shape.hidden_size,
        norm=Norm(reader.take("layer_norm_epsilon", float, 1e-5), "layer"),
        blocks=same_blocks(shape.layers, alibi(shape.heads, bias_max)),
        activation="gelu",
        gated=False,
        scale=scale,
        clip_qkv=clip or None,
        tie_embeddings=reader.take("tie_word_embeddings", bool, True),
    )


def convert(weights: Weights, config: ModelConfig) -> Weights:
    """q, k and v are one matrix, one after the other."""
    weights = rename(
        weights,
        (r"^transformer\.", ""),
        (r"^wte\.", "model.embed_tokens."),
        (r"^norm_f\.", "model.norm."),
        (r"^blocks\.", "model.layers."),
        (r"\.norm_1\.", ".input_layernorm."),
        (r"\.norm_2\.", ".post_attention_layernorm."),
        (r"\.attn\.Wqkv\.", ".self_attn.Wqkv."),
        (r"\.attn\.out_proj\.", ".self_attn.o_proj."),
        (r"\.ffn\.", ".mlp."),
    )
    width = config.heads * config.head_dim
    return split(weights, "Wqkv", [("q_proj", width), ("k_proj", width), ("v_proj", width)])
