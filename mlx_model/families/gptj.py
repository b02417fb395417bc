"""GPT-J: attention and MLP side by side on one norm, a part of each head turned in pairs."""

from ...runtime.errors import InputError
from ..config import ModelConfig, Norm
from ..positions import RopeConfig
from .common.reader import ConfigReader
from .common.shape import Shape, read_activation, read_shape, same_blocks
from .common.weights import Weights, drop, rename


def read_config(reader: ConfigReader) -> ModelConfig:
    """Translate a GPT-J config.json."""
    shape = read_shape(
        reader,
        context=2048,
        hidden_size="n_embd",
        layers="n_layer",
        heads="n_head",
        context_key="n_positions",
    )
    reader.only("rotary", True)
    reader.only("scale_attn_weights", True)
    reader.only("tie_word_embeddings", False)  # its head has a bias, which embeddings have not
    reader.skip(
        "n_ctx",  # the size of the causal mask, once
        "summary_type",  # these are of GPT-2's double-heads model
        "summary_use_proj",
        "summary_activation",
        "summary_proj_to_labels",
        "summary_first_dropout",
    )
    return ModelConfig(
        family="gptj",
        **shape.sizes(),
        feed_forward=reader.positive("n_inner", 4 * shape.hidden_size),
        norm=Norm(reader.take("layer_norm_epsilon", float, 1e-5), "layer", bias=True),
        blocks=same_blocks(shape.layers, _read_rotation(reader, shape)),
        placement="parallel",
        activation=read_activation(reader, "activation_function", "gelu_new"),
        gated=False,
        mlp_bias=True,
        head_bias=True,
    )


def _read_rotation(reader: ConfigReader, shape: Shape) -> RopeConfig:
    dims = reader.positive("rotary_dim", 64)
    if dims % 2 or dims > shape.head_dim:
        raise InputError(
            f"config.json has rotary_dim {dims}; heads of {shape.head_dim} take an even number up "
            "to that"
        )
    return RopeConfig(base=10000.0, dims=dims, interleaved=True)


def convert(weights: Weights, config: ModelConfig) -> Weights:
    """Names alone differ."""
    weights = drop(weights, r".*\.attn\.(bias|masked_bias|embed_positions)")
    return rename(
        weights,
        (r"^(transformer|model)\.", ""),
        (r"^wte\.", "model.embed_tokens."),
        (r"^ln_f\.", "model.norm."),
        (r"^h\.", "model.layers."),
        (r"\.ln_1\.", ".input_layernorm."),
        (r"\.attn\.out_proj\.", ".self_attn.o_proj."),
        (r"\.attn\.([qkv]_proj)\.", r".self_attn.\1."),
        (r"\.mlp\.fc_in\.", ".mlp.up_proj."),
        (r"\.mlp\.fc_out\.", ".mlp.down_proj."),
    )
