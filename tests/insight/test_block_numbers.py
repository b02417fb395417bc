"""The block in numbers: counts against transformers and torch, bytes against the engines."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pippin.apps.graph_costs import graph_costs
from pippin.apps.insight.block import (
    PARTS,
    block_numbers,
    count_flops,
    count_parts,
    read_block,
)
from pippin.apps.inspect import count_parameters, inspect_model
from pippin.export.folder import export_folder
from pippin.kernels.prefill import THREADGROUP_BYTES
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.config import ModelConfig
from pippin.mlx_model.engine import MlxEngine
from pippin.mlx_model.families import read_family
from pippin.runtime.errors import InputError
from pippin.runtime.ort_engine import OrtEngine
from support.exported import tiny_checkpoint
from support.families import ROWS
from support.tiny import make_tiny, model_class, reference_model, tiny_config
from support.wheels import smollm2_gguf

# Parts by transformers' own names of parameters; the first pattern that is found.
_PARTS = (
    (r"vision|multi_modal", None),
    (r"lm_head|embed_out", "head"),
    (r"norm|\bln_|LayerNorm", "norms"),
    (r"attn|attention", "attention"),
    (r"mlp|ffn|moe|\bfc[12]\b", "mlp"),
)


def _part(name: str) -> str | None:
    return next((part for pattern, part in _PARTS if re.search(pattern, name)), "embedding")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_parts_are_those_that_transformers_has(row: Any) -> None:
    theirs = tiny_config(row.kind, **row.config)
    with torch.device("meta"):
        model = model_class(row.kind)(theirs)
    counts: dict[str | None, int] = dict.fromkeys((*PARTS, None), 0)
    for name, parameter in model.named_parameters():
        counts[_part(name)] += parameter.numel()
    del counts[None]
    counts["mlp"] += sum(
        buffer.numel() for name, buffer in model.named_buffers() if "e_score_correction" in name
    )
    config = read_family(theirs.to_dict()).config
    if not getattr(theirs, "layer_norm_elementwise_affine", True):
        counts["norms"] = count_parameters(config)["norms"]  # our decoder has weights of 1 there
    assert count_parts(config) == counts
    assert all(counts[part] for part in ("embedding", "attention", "mlp", "norms"))


_COUNTED = {
    "llama": ("Llama", {}),
    "llama-mha-wide-heads": ("Llama", {"num_key_value_heads": 6, "head_dim": 20}),
    "gpt2": ("GPT2", {"n_embd": 64, "n_head": 4, "n_layer": 2}),
    "gemma2": ("Gemma2", {"hidden_size": 64, "num_attention_heads": 4, "sliding_window": 512}),
    "phi3": ("Phi3", {}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2-moe": (
        "Qwen2Moe",
        {
            "moe_intermediate_size": 32,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "shared_expert_intermediate_size": 40,
        },
    ),
}


@pytest.mark.parametrize("name", _COUNTED)
def test_flops_are_those_that_torch_counts(name: str) -> None:
    """Eager attention multiplies masked scores too: S tokens cost S times the last one."""
    kind, changes = _COUNTED[name]
    theirs, length = tiny_config(kind, **changes), 24
    torch.manual_seed(0)
    model = reference_model(kind, theirs)
    counter = FlopCounterMode(display=False)
    with torch.inference_mode(), counter:
        model(torch.arange(length)[None] % 97, use_cache=False)
    counts = {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}

    def counted(pattern: str) -> int:
        return sum(count for name, count in counts.items() if re.search(pattern, name))

    attention = counted(r"\.\d+\.(self_attn|attn)$")
    projections = counted(r"\.\d+\.(self_attn|attn)\.\w+$")
    ours = count_flops(read_family(theirs.to_dict()).config, length)
    assert ours.projections * length == projections > 0
    assert ours.scores * length == attention - projections > 0
    assert ours.mlp * length == counted(r"\.\d+\.mlp$") > 0
    assert ours.head * length == counted(r"\.lm_head$") > 0
    assert ours.total == ours.projections + ours.scores + ours.mlp + ours.head


def _config(**changes: Any) -> ModelConfig:
    return read_family(tiny_config("Mistral", **changes).to_dict()).config


@pytest.mark.parametrize("window", [None, 1, 7, 24, 400])
def test_scores_grow_with_the_keys_that_are_seen(window: int | None) -> None:
    """Against the mask itself, written out."""
    config, length = _config(sliding_window=window), 24
    query, key = np.ogrid[:length, :length]
    seen = (key <= query) & (query - key < (window or length))
    each = 3 * 6 * 8 * 2 * 2  # layers, heads, head_dim; two products, two operations
    flops = count_flops(config, length)
    assert flops.scores == each * seen[-1].sum()
    assert flops.mean_scores == pytest.approx(each * seen.sum() / length, rel=1e-12)


def test_the_exported_graph_multiplies_as_much(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "model")
    folder = export_folder(checkpoint, tmp_path / "onnx", weights="fp32")
    costs = graph_costs(folder / "onnx" / "model.onnx")
    assert costs
    numbers = read_block(folder, "tiny", 100)
    assert numbers.flops.projections + numbers.flops.mlp == 2 * costs.fp32
    assert numbers.flops.scores == 2 * sum(cost.multiplications * 100 for cost in costs.layers)
    assert numbers == read_block(checkpoint.path, "tiny", 100)


@pytest.mark.parametrize(
    ("weights", "kv", "dtype"), [("fp32", None, "fp32"), ("q4", "int8", "int8")]
)
def test_key_value_bytes_are_the_engines(tmp_path: Path, weights: str, kv: Any, dtype: str) -> None:
    checkpoint = tiny_checkpoint(tmp_path / "model")
    folder = export_folder(checkpoint, tmp_path / "onnx", weights=weights, kv=kv)
    engine = OrtEngine.from_folder(folder, threads=1)
    numbers = read_block(folder, "tiny", 100, engine)
    by_dtype = {each.dtype: each for each in numbers.kv}
    assert list(by_dtype) == ["fp32", "fp16", "int8", "onnx"]
    own = by_dtype["onnx"]
    assert (own.per_token, own.total) == (by_dtype[dtype].per_token, by_dtype[dtype].total)
    assert own.per_token == engine.info.kv_bytes_per_token


def test_a_window_keeps_less_than_all_tokens(tmp_path: Path) -> None:
    tiny = make_tiny(tmp_path / "model", "Mistral", sliding_window=16)
    engine = MlxEngine.from_checkpoint(open_checkpoint(tiny.path), "tiny")
    full, _, _, own = read_block(tiny.path, "tiny", 500, engine).kv
    assert own.dtype == "mlx"
    assert own.per_token == full.per_token
    assert own.total == engine.memory_needed(500) < full.total == 500 * full.per_token


def test_memory_is_that_of_inspect(tmp_path: Path) -> None:
    tiny = make_tiny(tmp_path / "model")
    numbers = read_block(tiny.path, "tiny", 100)
    half, full = inspect_model(tiny.path, "tiny", 100).costs
    kv = {each.dtype: (each.per_token, each.total) for each in numbers.kv}
    assert kv["fp16"] == (half.kv_per_token, half.kv_cache)
    assert kv["fp32"] == (full.kv_per_token, full.kv_cache)
    assert kv["int8"] == (half.kv_per_token // 2, half.kv_cache // 2)
    assert numbers.scores_layer == full.naive_scores_layer
    assert numbers.scores_all == full.naive_scores_all
    assert sum(numbers.parameters.values()) == tiny.reference.num_parameters()
    assert read_block(tiny.path, "tiny").length == 512


def test_tiles_do_not_grow_with_the_length() -> None:
    config = _config(head_dim=64, max_position_embeddings=8192)
    short, long = (block_numbers(config, "tiny", length) for length in (64, 8192))
    assert short.tiles == long.tiles
    assert [tile.refused for tile in long.tiles] == [None, None]
    assert all(0 < tile.memory <= THREADGROUP_BYTES for tile in long.tiles)
    rows = np.zeros((32, long.tiles[0].keys), np.float32)
    assert long.tiles[0].scores == rows.nbytes
    assert long.scores_layer == (8192 // 64) ** 2 * short.scores_layer
    assert long.row_sums == np.zeros((6, 8192), np.float32).nbytes


def test_heads_that_the_kernel_refuses_say_why() -> None:
    tiles = block_numbers(_config(head_dim=20), "tiny", 64).tiles
    assert all("head_dim 20" in (tile.refused or "") for tile in tiles)


@pytest.mark.parametrize("length", [0, -1, 513])
def test_a_length_that_the_model_does_not_take(tmp_path: Path, length: int) -> None:
    path = make_tiny(tmp_path / "model").path
    with pytest.raises(InputError, match=rf"{length} tokens.*tiny takes 1 to 512"):
        read_block(path, "tiny", length)


def test_smollm2_from_its_gguf() -> None:
    numbers = read_block(smollm2_gguf(), "smollm2", 2048)
    # the model card says 135M; the count is that of the Llama formula for its config
    assert sum(numbers.parameters.values()) == 134_515_008
    assert numbers.parameters["embedding"] == 49_152 * 576
    assert numbers.parameters["head"] == 0  # tied
    assert numbers.scores_layer == 9 * 2048 * 2048 * 4
    assert [tile.refused for tile in numbers.tiles] == [None, None]


_NO_MLX = """
import sys
sys.modules["mlx"] = sys.modules["mlx.core"] = sys.modules["mlx.nn"] = None
"""
_COUNT = """
from pathlib import Path
from pippin.apps.insight.block import read_block
numbers = read_block(Path(sys.argv[1]), "tiny", 100)
print(sum(numbers.parameters.values()), numbers.flops.total, numbers.tiles)
"""
_IMPORT_FAMILIES = """
import importlib, pkgutil
import pippin.mlx_model.families as families
for module in pkgutil.iter_modules(families.__path__):
    importlib.import_module(f"{families.__name__}.{module.name}")
    print(module.name)
"""


def _without_mlx(program: str, *arguments: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _NO_MLX + program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.strip()


def test_an_exported_folder_where_there_is_no_mlx(tmp_path: Path) -> None:
    folder = export_folder(tiny_checkpoint(tmp_path / "model"), tmp_path / "onnx", weights="fp32")
    numbers = read_block(folder, "tiny", 100)
    counted = f"{sum(numbers.parameters.values())} {numbers.flops.total} ()"
    assert _without_mlx(_COUNT, folder) == counted


def test_no_family_needs_mlx_to_be_read() -> None:
    found = _without_mlx(_IMPORT_FAMILIES).split()
    assert {"gpt2", "gpt_oss", "llama", "mixtral", "opt"} <= set(found)
