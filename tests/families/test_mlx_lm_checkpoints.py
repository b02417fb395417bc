"""Checkpoints that mlx-lm has quantized, fused layouts kept: ours say what mlx-lm says of them."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.engine import MlxEngine
from pippin.mlx_model.load import load_decoder
from support.families import ROWS, TOLERANCE, error
from support.tiny import make_tiny

# Those of whose configs, as transformers 5 writes them, mlx-lm makes the same model.
NAMES = ("qwen3", "olmo2", "phi3")


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_of_mlx_lm_says_the_same(name, bits, tmp_path):
    row = next(row for row in ROWS if row.name == name)
    tiny = make_tiny(tmp_path / "whole", row.kind, row.seed, **row.config)
    model, config = load_model(tiny.path)
    model, config = quantize_model(model, config, group_size=32, bits=bits)
    path = tmp_path / "quantized"
    save_model(path, model)
    save_config(config, config_path=path / "config.json")
    ids = np.random.default_rng(0).integers(0, 97, 33).tolist()
    theirs = np.array(model(mx.array([ids]))[0].astype(mx.float32))
    decoder = load_decoder(open_checkpoint(path), mx.float32)
    assert "scales" in decoder.model.layers[0].self_attn.q_proj
    ours = np.array(MlxEngine(decoder, name, "0").open().verify(ids))
    assert error(ours, theirs) <= TOLERANCE
