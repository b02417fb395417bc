"""A checkpoint's weights are exactly what its config calls for, or it is refused."""

import json

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.load import load_decoder
from pippin.mlx_model.numpy_ops import NumpyCache, NumpyOps
from pippin.runtime.errors import InputError

IDS = np.random.default_rng(2).integers(0, 97, 60).tolist()


def rewrite(folder, change):
    """Apply `change` to the weights of the checkpoint in `folder`."""
    file = folder / "model.safetensors"
    weights = change(dict(mx.load(str(file))))
    mx.eval(weights)
    file.unlink()
    mx.save_safetensors(str(file), weights, {"format": "pt"})


def without(name):
    return lambda weights: {n: w for n, w in weights.items() if n != name}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without("model.layers.1.mlp.up_proj.weight"), "lacks model.layers.1.mlp.up_proj.weight"),
        (lambda w: {**w, "model.extra.weight": mx.zeros(3)}, "has model.extra.weight"),
        (lambda w: {**w, "model.norm.weight": mx.zeros(47)}, r"shape \[47\].* calls for \[48\]"),
        (lambda w: {k: w[k] for k in list(w)[:2]}, r"lacks .* and \d+ more"),
    ],
)
def test_wrong_weights_are_named(tiny_factory, edited, change, said):
    folder = edited(tiny_factory())
    rewrite(folder, change)
    with pytest.raises(InputError, match=said) as error:
        load_decoder(open_checkpoint(folder))
    assert "\n" not in str(error.value)


def test_stored_rotary_frequencies_are_computed_instead(tiny_factory, edited, engine_of):
    folder = edited(tiny_factory())
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": mx.zeros(4)}
    rewrite(folder, lambda weights: {**weights, **extra})
    assert engine_of(folder).open().verify(IDS).shape == (60, 97)


@pytest.mark.parametrize("same", [True, False])
def test_a_head_stored_beside_a_tied_table(tiny_factory, edited, engine_of, same):
    """transformers ties the two only when they are equal; a different head is used."""
    folder = edited(tiny_factory(tie_word_embeddings=True))
    head = mx.load(str(folder / "model.safetensors"))["model.embed_tokens.weight"]
    head = head if same else head[::-1]
    rewrite(folder, lambda weights: {**weights, "lm_head.weight": head})
    logits = np.array(engine_of(folder).open().verify(IDS))
    tied = np.array(engine_of(tiny_factory(tie_word_embeddings=True).path).open().verify(IDS))
    np.testing.assert_allclose(logits, tied if same else tied[:, ::-1], atol=1e-4)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_mlx_quantized_safetensors(tiny_factory, edited, engine_of, bits, mixed):
    """Logits equal those of the dequantized weights, whatever bits each layer has."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32}
    tiny = tiny_factory(**sizes, num_attention_heads=2)
    decoder = load_decoder(open_checkpoint(tiny.path), mx.float32)

    def choose(path, module):
        if not hasattr(module, "to_quantized") or (mixed and "layers.1" in path):
            return False
        return {"bits": 8 if mixed and "down" in path else bits, "group_size": 32}

    nn.quantize(decoder, class_predicate=choose)
    folder = edited(tiny, quantization={"bits": bits, "group_size": 32})
    rewrite(folder, lambda _: dict(tree_flatten(decoder.parameters())))
    engine = engine_of(folder)
    assert engine.decoder.model.layers[0].mlp.gate_proj.bits == bits
    caches = [NumpyCache() for _ in range(3)]
    exact = engine.decoder(NumpyOps(), np.array([IDS]), caches)[0]
    ours = np.array(engine.open().verify(IDS))
    assert np.abs(ours - exact).max() <= 1e-4 * np.abs(exact).max()


def test_impossible_quantization_is_refused(tiny_factory, edited):
    folder = edited(tiny_factory(), quantization={"bits": 4, "group_size": 48})
    triple = {
        "lm_head.weight": mx.zeros((97, 6), mx.uint32),
        "lm_head.scales": mx.zeros((97, 1)),
        "lm_head.biases": mx.zeros((97, 1)),
    }
    rewrite(folder, lambda weights: {**weights, **triple})
    with pytest.raises(InputError, match="lm_head looks like 4-bit weights in groups of 48"):
        load_decoder(open_checkpoint(folder))


def test_other_quantization_modes_are_refused(tiny_factory, edited):
    folder = edited(tiny_factory(), quantization={"bits": 4, "group_size": 32, "mode": "mxfp6"})
    with pytest.raises(InputError, match="'mxfp6'"):
        load_decoder(open_checkpoint(folder))


def test_sharded_equals_single(tiny_factory, tmp_path, engine_of):
    tiny = tiny_factory()
    tiny.reference.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(json.loads((tmp_path / "model.safetensors.index.json").read_text())) == 2
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ours = engine_of(tmp_path).open().verify(IDS)
    whole = engine_of(tiny.path).open().verify(IDS)
    np.testing.assert_array_equal(np.array(ours), np.array(whole))
