"""Six public spellings of the same RoPE settings give the same logits; unknown ones are refused."""

import numpy as np
import pytest

from pippin.mlx_model.families import read_family
from pippin.runtime.errors import InputError

IDS = np.random.default_rng(5).integers(0, 97, 200).tolist()
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GONE = {"rope_theta": ..., "rope_scaling": ..., "rope_parameters": ...}
PLAIN = {
    "theta alone": {"rope_theta": 5000.0},
    "theta, null scaling": {"rope_theta": 5000.0, "rope_scaling": None},
    "theta, default type": {"rope_theta": 5000.0, "rope_scaling": {"rope_type": "default"}},
    "parameters": {"rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"}},
    "parameters, no type": {"rope_parameters": {"rope_theta": 5000.0}},
    "parameters, null scaling": {
        "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"},
        "rope_scaling": None,
    },
    "inner theta wins": {"rope_theta": 77.0, "rope_parameters": {"rope_theta": 5000.0}},
}
SCALED = {
    "type": {"rope_theta": 500.0, "rope_scaling": {"type": "llama3", **LLAMA3}},
    "rope_type": {"rope_theta": 500.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    "both types": {
        "rope_theta": 500.0,
        "rope_scaling": {"rope_type": "llama3", "type": "llama3", **LLAMA3},
    },
    "parameters": {"rope_parameters": {"rope_theta": 500.0, "rope_type": "llama3", **LLAMA3}},
    "parameters, outer theta": {
        "rope_theta": 500.0,
        "rope_parameters": {"rope_type": "llama3", **LLAMA3},
    },
    "scaling and parameters": {
        "rope_theta": 500.0,
        "rope_scaling": {"type": "llama3", **LLAMA3},
        "rope_parameters": {"rope_theta": 500.0, "rope_type": "llama3", **LLAMA3},
    },
}


def check(spelling, made_with, tiny_factory, engine_of, edited):
    tiny = tiny_factory(rope_parameters=made_with)
    ours = engine_of(edited(tiny, **{**GONE, **spelling})).open().verify(IDS)
    plain = engine_of(tiny.path).open().verify(IDS)
    np.testing.assert_array_equal(np.array(ours), np.array(plain))
    reference = tiny.logits(IDS)
    assert np.abs(np.array(ours) - reference).max() <= 1e-4 * np.abs(reference).max()


@pytest.mark.parametrize("name", PLAIN)
def test_plain_spellings(name, tiny_factory, engine_of, edited):
    made_with = {"rope_type": "default", "rope_theta": 5000.0}
    check(PLAIN[name], made_with, tiny_factory, engine_of, edited)


@pytest.mark.parametrize("name", SCALED)
def test_llama3_spellings(name, tiny_factory, engine_of, edited):
    made_with = {"rope_type": "llama3", "rope_theta": 500.0, **LLAMA3}
    check(SCALED[name], made_with, tiny_factory, engine_of, edited)


def test_absent_settings_mean_base_10000(tiny_factory, engine_of, edited):
    tiny = tiny_factory()
    assert tiny.reference.config.rope_parameters["rope_theta"] == 10000.0
    ours = engine_of(edited(tiny, **GONE)).open().verify(IDS)
    np.testing.assert_array_equal(np.array(ours), np.array(engine_of(tiny.path).open().verify(IDS)))


BASE = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 1,
    "num_attention_heads": 6,
    "max_position_embeddings": 512,
}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rope_scaling": {"type": "spiral", "factor": 2.0}}, "'spiral'"),
        ({"rope_scaling": {"type": "su", "factor": 2.0}}, "'short_factor'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "warmth": 3}}, "'warmth'"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "'factor'"),
        ({"rope_scaling": {"rope_type": "linear", "type": "llama3", "factor": 2.0}}, "'linear'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "'factor'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "0.5"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "'2'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "warmth": 3}}, "'warmth'"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 5.0}}, "5.0"),
        ({"rope_parameters": {"sliding_attention": {"rope_type": "default"}}}, "sliding_attention"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        (
            {
                "rope_scaling": {"rope_type": "linear", "factor": 2.0},
                "rope_parameters": {"rope_type": "linear", "factor": 4.0},
            },
            "factor",
        ),
        ({"rope_scaling": {"rope_type": "custom", "factors": [1.0, 2.0]}}, "2 factors"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(settings, named):
    with pytest.raises(InputError, match=named) as error:
        read_family({**BASE, **settings})
    assert "\n" not in str(error.value)
