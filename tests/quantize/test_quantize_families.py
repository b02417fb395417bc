"""Every family's checkpoints can be quantized, whatever their names and layouts."""

import json

import numpy as np
import pytest

from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.numpy_ops import NumpyCache, NumpyOps
from pippin.mlx_model.quantize import quantize_checkpoint
from support.exported import difference, mlx_logits
from support.families import ROWS, Subject
from support.quantized import load, mlx_lm_logits, tensors

FIRST = {row.kind: row for row in reversed(ROWS)}  # one row a family
# Families that mlx-lm reads as transformers does, and the keys that it looks for in vain in what
# transformers 5 writes: they say what is the default anyway, or stand in rope_parameters.
MLX_LM = {
    "Llama": (),
    "Qwen3": ("rope_theta",),
    "Olmo2": ("rope_theta",),
    "Phi3": ("rope_theta",),
    "GPTJ": (),
    "GPT2": ("n_ctx",),
    "Mixtral": ("rope_theta",),
    "Olmoe": ("rope_theta",),
    "Qwen3Moe": ("rope_theta", "num_experts"),
}


@pytest.fixture(scope="module", params=FIRST, ids=lambda kind: FIRST[kind].name)
def subject(request, tmp_path_factory):
    return Subject(FIRST[request.param], tmp_path_factory.mktemp("family"))


@pytest.mark.parametrize("options", [{"bits": 8, "group_size": 32}, {"mode": "mxfp8"}], ids=str)
def test_quantized(options, subject, tmp_path):
    """MLX says what float64 makes of the dequantized weights; the model is still the same."""
    done = quantize_checkpoint(subject.checkpoint, tmp_path / "out", **options)
    decoder, ids = load(done.path), subject.ids(24)
    quantized = {path for path, module in decoder.named_modules() if "scales" in module}
    wide = [path for path in quantized if path.endswith(("q_proj", "embed_tokens"))]
    assert len(wide) == decoder.config.layers + 1
    assert all(done.plan[path] is None for path in done.too_narrow)
    caches = [NumpyCache() for _ in range(decoder.config.layers)]
    exact = decoder(NumpyOps(), np.array([ids]), caches)[0]
    assert difference(mlx_logits(decoder, ids), exact) < 1e-4
    if "bits" in options:  # mxfp8 rounds enough for other experts to be chosen
        assert difference(exact, subject.tiny.logits(ids)) < 0.5


@pytest.mark.parametrize("kind", MLX_LM)
@pytest.mark.parametrize("options", [{"bits": 4, "group_size": 32}, {"mode": "nvfp4"}], ids=str)
def test_mlx_lm_reads_it(options, kind, tmp_path):
    if kind == "Olmo2":  # which has no norm before attention: mlx-lm computes it in bfloat16
        options = options | {"rules": ["model.embed_tokens=float"]}
    subject = Subject(FIRST[kind], tmp_path)
    ids = subject.ids(24)
    folder = quantize_checkpoint(subject.checkpoint, tmp_path / "out", **options).path
    ours = mlx_logits(load(folder), ids)
    config = json.loads((folder / "config.json").read_text())
    known = {
        "rope_theta": config.get("rope_parameters", {}).get("rope_theta"),
        "num_experts": config.get("num_local_experts"),
        "n_ctx": config.get("n_positions"),
    }
    config |= {key: known[key] for key in MLX_LM[kind]}
    (folder / "config.json").write_text(json.dumps(config))
    assert difference(ours, mlx_lm_logits(folder, ids)) < 1e-4


def test_a_router_keeps_eight_bits(tmp_path):
    changes = {"hidden_size": 128, "intermediate_size": 64}
    row = FIRST["Mixtral"]
    subject = Subject(type(row)(**vars(row) | {"config": row.config | changes}), tmp_path / "wide")
    done = quantize_checkpoint(subject.checkpoint, tmp_path / "out", bits=2)
    router = load(done.path).model.layers[0].mlp.gate
    assert (router.bits, router.group_size, router.mode) == (8, 64, "affine")
    experts = "model.layers.0.block_sparse_moe.switch_mlp.up_proj"
    assert done.plan[experts].bits == 2
    assert tensors(done.path)[f"{experts}.scales"].ndim == 3
    rule = quantize_checkpoint(
        open_checkpoint(subject.checkpoint.path), tmp_path / "again", rules=["*mlp.gate=float"]
    )
    assert "scales" not in load(rule.path).model.layers[0].mlp.gate
