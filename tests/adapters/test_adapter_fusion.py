"""Fused weights, tensor by tensor, against those that PEFT merges: no family is needed for it."""

import warnings
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file

from pippin.mlx_model.adapters.fuse import apply_adapter
from pippin.mlx_model.adapters.read import read_adapter
from pippin.runtime.errors import InputError
from support.adapters import TinyAdapter, edit_tensors, make_peft
from support.tiny import Tiny, make_tiny

GPT2 = {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64}
CONV1D = ["c_attn", "c_proj", "c_fc"]
# transformers' class → (changes of its config, target_modules)
KINDS = {
    "Llama": ({}, "all-linear"),
    "GPT2": (GPT2, CONV1D),
    "GPT2-dora": (GPT2, CONV1D),
    "GPT2-square-mlp": ({**GPT2, "n_inner": 48}, CONV1D),
    "GPTBigCode": (GPT2, CONV1D),
    "Starcoder2": ({}, ["c_fc", "c_proj", "q_proj"]),
    "GPTNeoX": ({}, ["query_key_value", "dense", "dense_4h_to_h", "embed_out"]),
    "Phi3": ({}, ["qkv_proj", "gate_up_proj", "down_proj"]),
    "Bloom": ({"n_layer": 2, "n_head": 4}, ["query_key_value", "dense"]),
    "OPT": ({"ffn_dim": 80, "word_embed_proj_dim": 48}, ["q_proj", "fc1", "out_proj"]),
}


@pytest.mark.parametrize("case", KINDS)
def test_weights_are_those_that_peft_merges(case: str, tmp_path: Path) -> None:
    changes, targets = KINDS[case]
    base = make_tiny(tmp_path / "base", case.partition("-")[0], **changes)
    options = {"target_modules": targets, "use_dora": case.endswith("dora")}
    adapter = make_peft(tmp_path / "adapter", base.path, **options)
    before, merged = _stored(base.path), _merged(adapter, tmp_path / "merged")
    fused = _fused(before, adapter.path)
    assert fused.keys() == merged.keys()
    changed = {name for name in merged if not np.array_equal(before[name], merged[name])}
    assert changed  # PEFT changed something
    for name, array in merged.items():
        assert np.abs(fused[name] - array).max() <= 1e-6 * np.abs(array).max(), name
        assert name in changed or np.array_equal(fused[name], before[name])


def test_a_square_conv1d_is_told_from_a_square_linear(tmp_path: Path) -> None:
    """attn.c_proj of GPT-2 lies [in, out], that of GPT-BigCode [out, in]; both are 48 × 48."""
    for kind in ("GPT2", "GPTBigCode"):
        base = make_tiny(tmp_path / kind, kind, **GPT2)
        adapter = make_peft(tmp_path / f"{kind}-a", base.path, target_modules=["attn.c_proj"])
        merged = _merged(adapter, tmp_path / f"{kind}-m")
        fused = _fused(_stored(base.path), adapter.path)
        name = "transformer.h.0.attn.c_proj.weight"
        assert merged[name].shape == (48, 48)
        np.testing.assert_allclose(fused[name], merged[name], atol=1e-6)


@pytest.mark.parametrize("prefix", ["", "model."])
def test_the_first_part_of_a_name_is_that_of_the_saved_class(prefix: str, tmp_path: Path) -> None:
    """GPT-2 on the hub has h.0…, transformers writes transformer.h.0…, mlx-lm model.h.0…"""
    base = make_tiny(tmp_path / "base", "GPT2", **GPT2)
    adapter = make_peft(tmp_path / "adapter", base.path, target_modules=CONV1D)

    def renamed(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name.replace("transformer.", prefix): w for name, w in weights.items()}

    before, merged = renamed(_stored(base.path)), renamed(_merged(adapter, tmp_path / "merged"))
    fused = _fused(before, adapter.path)
    for name, array in merged.items():
        np.testing.assert_allclose(fused[name], array, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_a_weight_keeps_its_type_and_is_rounded_once(dtype: mx.Dtype, tmp_path: Path) -> None:
    base = make_tiny(tmp_path / "base", num_hidden_layers=1)
    adapter = make_peft(tmp_path / "adapter", base.path, target_modules=["q_proj"])
    name = "model.layers.0.self_attn.q_proj"
    weights = {n: mx.array(w).astype(dtype) for n, w in _stored(base.path).items()}
    fused = apply_adapter(weights, read_adapter(adapter.path))[f"{name}.weight"]
    factors = {n.split(".")[-2]: w for n, w in _factors(adapter).items() if name in n}
    a, b = factors["lora_A"].astype(np.float64), factors["lora_B"].astype(np.float64)
    before = np.array(weights[f"{name}.weight"].astype(mx.float32)).astype(np.float64)
    exact = before + 6 / 4 * b @ a
    assert fused.dtype == dtype
    half_ulp = {mx.float32: 2**-23, mx.float16: 2**-11, mx.bfloat16: 2**-8}[dtype]
    error = np.abs(np.array(fused.astype(mx.float32)) - exact)
    assert (error <= 1.01 * half_ulp * np.abs(exact) + 1e-6).all()


@pytest.mark.parametrize(
    ("mode", "bits", "group"),
    [
        *(("affine", bits, group) for bits, group in ((2, 32), (3, 64), (4, 32), (6, 64), (8, 32))),
        ("mxfp4", 4, 32),
        ("nvfp4", 4, 16),
        ("mxfp8", 8, 32),
    ],
)
def test_a_quantized_layer_becomes_a_floating_point_one(
    mode: str, bits: int, group: int, tmp_path: Path
) -> None:
    base = make_tiny(tmp_path / "base", hidden_size=192, intermediate_size=64, num_hidden_layers=1)
    adapter = make_peft(tmp_path / "adapter", base.path, target_modules=["q_proj", "down_proj"])
    plain = {n: mx.array(w).astype(mx.float16) for n, w in _stored(base.path).items()}
    coded: dict[str, mx.array] = {}
    rounded: dict[str, mx.array] = {}
    for name, weight in plain.items():
        stem = name.removesuffix(".weight")
        if not stem.endswith("_proj"):
            coded[name] = rounded[name] = weight
            continue
        codes = mx.quantize(weight, group_size=group, bits=bits, mode=mode)
        leaves = ("weight", "scales", "biases")
        coded |= {f"{stem}.{leaf}": array for leaf, array in zip(leaves, codes, strict=False)}
        exact = [codes[0], *(part.astype(mx.float32) for part in codes[1:])]
        rounded[name] = mx.dequantize(
            *(exact if mode == "affine" else codes),
            group_size=group,
            bits=bits,
            mode=mode,
            dtype=mx.float32,
        )
    loaded = read_adapter(adapter.path)
    fused, wanted = apply_adapter(coded, loaded), apply_adapter(rounded, loaded)
    for stem in ("model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"):
        found = fused[f"{stem}.weight"]
        assert found.dtype == (mx.float16 if mode == "affine" else mx.bfloat16)
        assert mx.array_equal(found, wanted[f"{stem}.weight"].astype(found.dtype))
        assert f"{stem}.scales" not in fused
        assert f"{stem}.biases" not in fused
    kept = "model.layers.0.self_attn.k_proj"
    assert mx.array_equal(fused[f"{kept}.weight"], coded[f"{kept}.weight"])
    assert f"{kept}.scales" in fused


def test_a_row_of_zeros_stays_one_under_dora(tmp_path: Path) -> None:
    base = make_tiny(tmp_path / "base", num_hidden_layers=1)
    adapter = make_peft(tmp_path / "a", base.path, target_modules=["q_proj"], use_dora=True)

    def without_first_row(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {
            n: w * (np.arange(len(w)) > 0)[:, None] if "lora_B" in n else w
            for n, w in tensors.items()
        }

    edit_tensors(adapter.path, without_first_row)
    before = _stored(base.path)
    name = "model.layers.0.self_attn.q_proj.weight"
    before[name] = before[name] * (np.arange(48) > 0)[:, None]
    fused = _fused(before, adapter.path)[name]
    assert (fused[0] == 0).all()
    assert np.isfinite(fused).all()


def test_a_layer_that_is_not_there_is_named(tmp_path: Path) -> None:
    deep = make_tiny(tmp_path / "deep", num_hidden_layers=5)
    adapter = make_peft(tmp_path / "a", deep.path, target_modules=["q_proj", "k_proj"])
    shallow = make_tiny(tmp_path / "shallow", num_hidden_layers=3)
    with pytest.raises(InputError, match=r"layers\.[34]\.self_attn.* and 1 more, which the check"):
        _fused(_stored(shallow.path), adapter.path)


@pytest.mark.parametrize("quantized", [False, True], ids=["float", "quantized"])
def test_another_shape_is_refused(quantized: bool, tmp_path: Path) -> None:
    wide = make_tiny(tmp_path / "wide", hidden_size=192)
    adapter = make_peft(tmp_path / "a", wide.path, target_modules=["q_proj"])
    weights = _stored(make_tiny(tmp_path / "narrow", hidden_size=96).path)
    if quantized:
        for name in [n for n in weights if n.endswith("q_proj.weight")]:
            codes = mx.quantize(mx.array(weights[name]), 32, 4)
            for leaf, array in zip(("weight", "scales", "biases"), codes, strict=True):
                weights[name.replace("weight", leaf)] = np.array(array)
    with pytest.raises(InputError, match=r"has \[192, 192\] for model.*q_proj, the checkpoint"):
        _fused(weights, adapter.path)


@pytest.mark.parametrize("module", ["embed_tokens", "lm_head"])
def test_a_resized_vocabulary_is_named(module: str, tmp_path: Path) -> None:
    base = make_tiny(tmp_path / "base", vocab_size=101)
    adapter = make_peft(
        tmp_path / "a", base.path, target_modules=["q_proj"], modules_to_save=[module]
    )
    weights = _stored(make_tiny(tmp_path / "other").path)
    with pytest.raises(InputError, match=rf"\[101, 48\] for .*{module}.*\[97, 48\]; resize"):
        _fused(weights, adapter.path)


def _stored(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "model.safetensors")


def _factors(adapter: TinyAdapter) -> dict[str, np.ndarray]:
    return load_file(adapter.path / "adapter_model.safetensors")


def _merged(adapter: TinyAdapter, out: Path) -> dict[str, np.ndarray]:
    """What PEFT and transformers write once the adapter is merged; it changes the reference."""
    assert isinstance(adapter.reference, Tiny)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapter.reference.reference.merge_and_unload().save_pretrained(out)
    return _stored(out)


def _fused(weights: dict[str, np.ndarray], adapter: Path) -> dict[str, np.ndarray]:
    fused = apply_adapter({n: mx.array(w) for n, w in weights.items()}, read_adapter(adapter))
    return {name: np.array(w) for name, w in fused.items()}
