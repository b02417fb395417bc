"""Adapters that cannot be used, or would not give what was trained, are refused in one line."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from pippin.mlx_model.adapters.read import read_adapter
from pippin.runtime.errors import InputError
from support.adapters import edit_config, edit_tensors, make_mlx_lm, make_peft
from support.tiny import make_tiny

Tensors = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One adapter of each format and method; tests must not change them."""
    top = tmp_path_factory.mktemp("adapters")
    base = make_tiny(top / "base", num_hidden_layers=1).path
    peft, mlx = {"target_modules": ["q_proj", "embed_tokens"]}, {"keys": ["self_attn.q_proj"]}
    return {
        "peft": make_peft(top / "peft", base, **peft).path,
        "peft-dora": make_peft(top / "peft-dora", base, **peft, use_dora=True).path,
        "mlx-lm": make_mlx_lm(top / "mlx-lm", base, **mlx).path,
        "mlx-lm-dora": make_mlx_lm(top / "mlx-lm-dora", base, **mlx, dora=True).path,
    }


@pytest.fixture
def copied(adapters: dict[str, Path], tmp_path: Path):
    return lambda name: shutil.copytree(adapters[name], tmp_path / name)


def refusal(folder: Path) -> str:
    with pytest.raises(InputError) as error:
        read_adapter(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


PEFT_REFUSED = {
    "peft_type": "IA3",
    "peft_type ": "ADALORA",
    "peft_type  ": "LOHA",
    "bias": "some",
    "init_lora_weights": "pissa",
    "init_lora_weights ": "pissa_niter_4",
    "init_lora_weights  ": "OLoRA",
    "init_lora_weights   ": "corda",
    "init_lora_weights    ": "loftq",
    "init_lora_weights     ": "lora_ga",
    "lora_bias": True,
    "use_qalora": True,
    "use_bdlora": {"nblocks": 2},
    "layer_replication": [[0, 2], [1, 3]],
    "megatron_config": {"tensor_model_parallel_size": 2},
    "trainable_token_indices": [1, 2],
    "target_parameters": ["mlp.experts.gate_up_proj"],
    "alora_invocation_tokens": [3],
    "arrow_config": {"top_k": 1},
    "kasa_config": {"beta": 0.1},
    "monteclora_config": {"n": 2},
    "velora_config": {"num_groups": 2},
    "corda_config": {"corda_method": "kpm"},
    "loftq_config": {"loftq_bits": 4},
    "lora_ga_config": {"direction": "ArB2r"},
    "an_invented_key": 1,
}


@pytest.mark.parametrize(
    "key", PEFT_REFUSED, ids=lambda key: f"{key.strip()}{key.count(' ') or ''}"
)
def test_what_changes_the_output_is_refused_by_name(key: str, copied) -> None:
    folder = edit_config(copied("peft"), **{key.strip(): PEFT_REFUSED[key]})
    assert key.strip() in refusal(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"r": 8}, r"config's rank r = 8"),
        ({"r": 0}, "r = 0"),
        ({"r": None}, "lacks 'r'"),
        ({"lora_alpha": None}, "lacks 'lora_alpha'"),
        ({"lora_alpha": float("nan")}, "nan in lora_alpha"),
        ({"lora_alpha": 10**400}, "in lora_alpha"),
        ({"lora_alpha": "6"}, "lora_alpha = '6'"),
        ({"rank_pattern": {"q_proj": 5}}, "rank r = 5"),
        ({"rank_pattern": {"q_proj": 0}}, "rank 0"),
        ({"rank_pattern": {"q_(proj": 4}}, "no regular expression"),
        ({"alpha_pattern": {"q_proj": "much"}}, "'much' in alpha_pattern"),
        ({"use_dora": True}, "lacks lora_magnitude_vector of model.embed_tokens"),
        ({"use_rslora": "yes"}, "use_rslora = 'yes'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_config_that_the_tensors_contradict(
    changes: dict[str, Any], message: str, copied
) -> None:
    assert message in refusal(edit_config(copied("peft"), **changes))


def test_a_magnitude_that_the_config_does_not_call_for(copied) -> None:
    folder = edit_config(copied("peft-dora"), use_dora=False)
    assert "lora_magnitude_vector', which its adapter_config.json does" in refusal(folder)
    folder = edit_config(copied("mlx-lm-dora"), fine_tune_type="lora")
    assert "q_proj.m', which its adapter_config.json does" in refusal(folder)


def test_both_spellings_of_a_magnitude_are_one(adapters: dict[str, Path], copied) -> None:
    def longer(tensors: Tensors) -> Tensors:
        return {n + ".weight" * n.endswith("_vector"): w for n, w in tensors.items()}

    folder = edit_tensors(copied("peft-dora"), longer)
    short, long = read_adapter(adapters["peft-dora"]).updates, read_adapter(folder).updates
    assert short.keys() == long.keys()
    assert all(long[layer].magnitude.name.endswith("_vector.weight") for layer in long)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fine_tune_type": "full"}, "fine_tune_type 'full'"),
        ({"lora_parameters": None}, "lacks 'lora_parameters'"),
        ({"lora_parameters": {"rank": 4}}, "lacks 'scale'"),
        ({"lora_parameters": {"rank": 4, "scale": 1.0, "alpha": 8}}, "'alpha'"),
        ({"lora_parameters": {"rank": 5, "scale": 1.0}}, "rank r = 5"),
        ({"lora_parameters": {"rank": 4, "scale": float("inf")}}, "scale = inf"),
        ({"fine_tune_type": "dora"}, "lacks m of model.layers.0.self_attn.q_proj"),
    ],
)
def test_mlx_lm_configs_that_are_refused(changes: dict[str, Any], message: str, copied) -> None:
    assert message in refusal(edit_config(copied("mlx-lm"), **changes))


@pytest.mark.parametrize("name", ["peft", "mlx-lm"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {}, "changes nothing"),
        (
            lambda t: {n: w for n, w in t.items() if "lora_B" not in n and "lora_b" not in n},
            "lacks",
        ),
        (lambda t: {n: w.astype(np.int32) for n, w in t.items()}, "in I32"),
        (lambda t: {n: w[..., None] for n, w in t.items()}, "factors of shapes"),
        (lambda t: t | {"surprise.lora_c": np.ones(2, np.float32)}, "surprise.lora_c"),
    ],
    ids=["none", "half", "integers", "axes", "unknown"],
)
def test_tensors_that_are_refused(name: str, change: Any, message: str, copied) -> None:
    assert message in refusal(edit_tensors(copied(name), change))


def test_a_magnitude_of_stacked_experts_is_refused(copied) -> None:
    """mlx-lm has no DoRA of them, so that nobody says which norm is meant."""

    def stack(tensors: Tensors) -> Tensors:
        flipped = {n: w.T if "lora_" in n else w for n, w in tensors.items()}
        return {n: w[None] if "lora_" in n else w for n, w in flipped.items()}

    assert "has a magnitude of shape [48]" in refusal(edit_tensors(copied("mlx-lm-dora"), stack))


def test_unknown_kinds_of_peft_tensors_are_refused(copied) -> None:
    def add(tensors: Tensors) -> Tensors:
        return tensors | {"base_model.model.lm_head.lora_C.weight": np.ones(2, np.float32)}

    assert "lm_head.lora_C.weight" in refusal(edit_tensors(copied("peft"), add))


@pytest.mark.parametrize("name", ["peft", "mlx-lm"])
def test_folders_that_hold_no_adapter(name: str, copied, tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "has no adapter_config.json" in refusal(tmp_path / "empty")
    folder = copied(name)
    (file,) = folder.glob("*.safetensors")
    whole = file.read_bytes()
    file.write_bytes(whole[:-8])
    assert "truncated" in refusal(folder)
    file.unlink()
    assert f"lacks {file.name}" in refusal(folder)
    file.with_suffix(".bin").write_bytes(b"pickled")
    assert "another format than safetensors" in refusal(folder)
    (folder / "adapter_config.json").write_text("{}")
    assert "neither 'peft_type' nor 'fine_tune_type'" in refusal(folder)
    (folder / "adapter_config.json").write_text("[")
    assert "not valid JSON" in refusal(folder)


_KEYS = [*(key.strip() for key in PEFT_REFUSED), "r", "lora_alpha", "use_dora", "rank_pattern"]
_KEYS += ["alpha_pattern", "fan_in_fan_out", "fine_tune_type", "lora_parameters", "use_rslora"]
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(changes=st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=3), mlx=st.booleans())
def test_junk_in_a_config_is_read_or_refused(
    changes: dict[str, Any], mlx: bool, adapters: dict[str, Path], tmp_path_factory
) -> None:
    source = adapters["mlx-lm" if mlx else "peft"]
    folder = tmp_path_factory.mktemp("junk")
    for file in source.glob("*.safetensors"):
        shutil.copy(file, folder)
    config = json.loads((source / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | changes))
    with suppress(InputError):
        read_adapter(folder)


@settings(max_examples=100, deadline=None)
@given(
    names=st.lists(st.text("abmlrow_AB.", min_size=1, max_size=20), unique=True, max_size=4),
    shape=st.lists(st.integers(0, 4), max_size=4),
    mlx=st.booleans(),
)
def test_junk_tensors_are_read_or_refused(
    names: list[str], shape: list[int], mlx: bool, tmp_path_factory
) -> None:
    folder = tmp_path_factory.mktemp("junk")
    prefix = "" if mlx else "base_model.model."
    tensors = {f"{prefix}{name}": np.zeros(shape, np.float32) for name in names}
    save_file(tensors, folder / f"{'adapters' if mlx else 'adapter_model'}.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2}
    if mlx:
        config = {"fine_tune_type": "lora", "lora_parameters": {"rank": 2, "scale": 1.0}}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    with suppress(InputError):
        read_adapter(folder)
