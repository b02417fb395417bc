"""What encoders' config.json and weights may say, and what is refused by name."""

import json

import mlx.core as mx
import numpy as np
import pytest

from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.encoder_families import encoder_model_types, read_encoder_family
from pippin.mlx_model.encoder_load import load_encoder, load_seq2seq
from pippin.mlx_model.load import load_decoder
from pippin.runtime.errors import InputError
from support.encoders import ENCODERS, SEQ2SEQ

BERT = {"model_type": "bert", "vocab_size": 61, "hidden_size": 48, "num_attention_heads": 3}
T5 = {"model_type": "t5", "vocab_size": 97}
MARIAN = {"model_type": "marian", "vocab_size": 97}
CONFIGS = {
    "bert": BERT,
    "distilbert": {"model_type": "distilbert", "vocab_size": 61},
    "mpnet": {"model_type": "mpnet", "vocab_size": 61},
    "t5": T5,
    "marian": MARIAN,
}


def edit_config(folder, **keys):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    return open_checkpoint(folder)


def test_each_family_is_tried():
    assert sorted(CONFIGS) == encoder_model_types()
    families = {read_encoder_family(config).config.family for config in CONFIGS.values()}
    assert families == set(CONFIGS)
    tried = {name.partition("-")[0] for name in (*ENCODERS, *SEQ2SEQ)}
    assert tried == set(CONFIGS)


@pytest.mark.parametrize("family", sorted(CONFIGS))
@pytest.mark.parametrize("key", ["attention_window", "use_rope", "embedding_size"])
def test_unknown_keys_are_refused(family, key):
    with pytest.raises(InputError, match=f"'{key}'"):
        read_encoder_family(CONFIGS[family] | {key: 7})


@pytest.mark.parametrize(
    ("config", "named"),
    [
        pytest.param(BERT | {"position_embedding_type": "relative_key"}, "relative_key", id="shaw"),
        pytest.param(BERT | {"is_decoder": True}, "is_decoder", id="decoder"),
        pytest.param(BERT | {"hidden_act": "tanh"}, "tanh", id="activation"),
        pytest.param(BERT | {"num_attention_heads": 5}, "5 heads", id="heads"),
        pytest.param(BERT | {"quantization_config": {"quant_method": "gptq"}}, "gptq", id="gptq"),
        pytest.param(
            CONFIGS["mpnet"] | {"relative_attention_num_buckets": 16}, "num_buckets", id="buckets"
        ),
        pytest.param(T5 | {"feed_forward_proj": "silu-gated"}, "silu-gated", id="mlp"),
        pytest.param(T5 | {"dense_act_fn": "silu"}, "dense_act_fn", id="two-activations"),
        pytest.param(T5 | {"relative_attention_num_buckets": 2}, "at least 4", id="few-buckets"),
        pytest.param(T5 | {"relative_attention_max_distance": 8}, "distance", id="short"),
        pytest.param(MARIAN | {"normalize_before": True}, "normalize_before", id="pre-norm"),
        pytest.param(
            MARIAN | {"share_encoder_decoder_embeddings": False}, "share_encoder", id="two-tables"
        ),
        pytest.param({"model_type": "electra"}, "electra", id="family"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(config, named):
    with pytest.raises(InputError, match=named):
        read_encoder_family(config)


def test_each_kind_of_model_says_which_command_runs_it(encoder):
    checkpoint = open_checkpoint(encoder("bert").path)
    with pytest.raises(InputError, match="pippin embed"):
        load_decoder(checkpoint)
    with pytest.raises(InputError, match="pippin embed"):
        load_seq2seq(checkpoint)


def test_names_of_the_first_checkpoints(encoder, copied):
    """LayerNorm.gamma and .beta, a prefix, buffers and heads of pre-training."""
    stack = encoder("bert")
    folder = copied(stack)
    weights = mx.load(str(stack.path / "model.safetensors"))
    renamed = {
        f"bert.{name}".replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): array
        for name, array in weights.items()
    }
    renamed["bert.embeddings.position_ids"] = mx.arange(40)[None]
    renamed["cls.seq_relationship.weight"] = mx.zeros((2, 48))
    mx.save_safetensors(str(folder / "model.safetensors"), renamed)
    old, new = (load_encoder(open_checkpoint(path)) for path in (folder, stack.path))
    assert all(
        np.array_equal(np.array(a), np.array(b))
        for a, b in zip(_arrays(old), _arrays(new), strict=True)
    )


def _arrays(model):
    from mlx.utils import tree_flatten

    return [array for _, array in sorted(tree_flatten(model.parameters()))]


@pytest.mark.parametrize("change", ["lost", "extra", "shape"])
def test_weights_that_do_not_fit_are_refused(change, encoder, copied):
    stack = encoder("bert")
    folder = copied(stack)
    weights = mx.load(str(stack.path / "model.safetensors"))
    if change == "lost":
        del weights["encoder.layer.1.output.dense.bias"]
        named = r"lacks stack\.layers\.1\.mlp\.down_proj\.bias"
    elif change == "extra":
        weights["classifier.weight"] = mx.zeros((2, 48))
        named = r"has classifier\.weight"
    else:
        weights["embeddings.LayerNorm.bias"] = mx.zeros((47,))
        named = r"\[47\].*\[48\]"
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    with pytest.raises(InputError, match=named):
        load_encoder(open_checkpoint(folder))


def test_a_config_of_2019_loads(encoder, copied):
    """bert-base's own keys, as the hub has them."""
    folder = copied(encoder("bert"))
    checkpoint = edit_config(
        folder,
        attention_probs_dropout_prob=0.1,
        gradient_checkpointing=False,
        position_embedding_type="absolute",
        directionality="bidi",
        pooler_fc_size=768,
        pooler_type="first_token_transform",
        transformers_version="4.6.0.dev0",
    )
    assert load_encoder(checkpoint).config.stack.layers == 3


def test_configs_of_2020_load():
    """As the hub has them of opus-mt and of t5-small: keys of Bart's, and of how to search."""
    marian = MARIAN | {
        "_num_labels": 3,
        "add_bias_logits": False,
        "add_final_layer_norm": False,
        "bad_words_ids": [[96]],
        "classif_dropout": 0.0,
        "decoder_start_token_id": 96,
        "extra_pos_embeddings": 97,
        "force_bos_token_to_be_generated": False,
        "gradient_checkpointing": False,
        "normalize_before": False,
        "normalize_embedding": False,
        "num_beams": 6,
        "num_hidden_layers": 6,
        "scale_embedding": True,
        "static_position_embeddings": True,
    }
    read = read_encoder_family(marian).config
    assert (read.start_token, read.encoder.embedding_multiplier) == (96, 32.0)
    t5 = T5 | {
        "decoder_start_token_id": 0,
        "dropout_rate": 0.1,
        "initializer_factor": 1.0,
        "n_positions": 512,
        "output_past": True,
        "task_specific_params": {"summarization": {"num_beams": 4}},
    }
    assert read_encoder_family(t5).config.head_scale == 512**-0.5
    later = t5 | {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"}
    assert read_encoder_family(later | {"dense_act_fn": "gelu_new"}).config.head_scale == 1.0
