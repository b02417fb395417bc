"""A config key that may change the output and is not implemented is refused by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pippin.mlx_model.families import read_family
from pippin.runtime.errors import InputError

LLAMA = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 1,
    "num_attention_heads": 6,
    "max_position_embeddings": 512,
}
MISTRAL = {**LLAMA, "num_key_value_heads": 6, "model_type": "mistral", "sliding_window": None}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "lama"}, "did you mean 'llama'"),
        ({"model_type": "rwkv7"}, "'rwkv7'"),
        ({"model_type": None}, "None"),
        ({"hidden_act": "tanh_glu"}, "hidden_act = 'tanh_glu'"),
        ({"attn_logit_softcapping": 30.0}, "'attn_logit_softcapping'"),
        ({"use_qk_norm": True}, "'use_qk_norm'"),
        ({"no_rope_layers": [0]}, "'no_rope_layers'"),
        ({"hidden_size": "48"}, "hidden_size = '48'"),
        ({"hidden_size": None}, "lacks 'hidden_size'"),
        ({"hidden_size": 50}, "50"),
        ({"num_key_value_heads": 4}, "4 kv heads"),
        ({"head_dim": 7}, "7 of 7 dimensions"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
        ({"vocab_size": True}, "vocab_size = True"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "'gptq'"),
    ],
)
def test_refusals(changes, named):
    with pytest.raises(InputError, match=named) as error:
        read_family({**LLAMA, **changes})
    assert "\n" not in str(error.value)


@given(key=st.from_regex(r"[a-z][a-z_]{3,20}", fullmatch=True), value=st.integers(1, 9))
def test_invented_keys_are_refused(key, value):
    from pippin.mlx_model.families.common.reader import _HARMLESS

    known = _HARMLESS | {
        "rope_theta rms_norm_eps attention_bias mlp_bias head_dim rope_scaling rope_parameters "
        "tie_word_embeddings quantization"
    }
    if key in known or key in LLAMA:
        return
    with pytest.raises(InputError, match=key):
        read_family({**LLAMA, key: value})


def test_a_null_key_is_an_absent_key():
    assert read_family({**LLAMA, "qk_norm": None}).config == read_family(LLAMA).config


def test_the_user_can_vouch_for_a_key(monkeypatch):
    monkeypatch.setenv("PIPPIN_IGNORE_CONFIG_KEYS", "provenance,other")
    assert read_family({**LLAMA, "provenance": "mine"}).config == read_family(LLAMA).config


@pytest.mark.parametrize(("window", "wanted"), [(16, 16), (511, 511), (512, None), (None, None)])
def test_a_mistral_window_that_hides_nothing_is_none(window, wanted):
    config = read_family({**MISTRAL, "sliding_window": window}).config
    assert [block.window for block in config.blocks] == [wanted]


def test_mistral_without_the_key_has_the_window_of_transformers():
    config = {k: v for k, v in MISTRAL.items() if k != "sliding_window"}
    read = read_family({**config, "max_position_embeddings": 8192}).config
    assert read.blocks[0].window == 4096
