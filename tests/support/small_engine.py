"""A small random decoder on MLX, of whatever blocks a test is about."""

import mlx.core as mx

from pippin.mlx_model.config import BlockConfig, ModelConfig, Norm
from pippin.mlx_model.decoder import Decoder
from pippin.mlx_model.engine import MlxEngine


def small_engine(*blocks: BlockConfig) -> MlxEngine:
    """Attention is far from uniform; the vocabulary has 61 tokens, heads have 16 dimensions."""
    config = ModelConfig(
        family="llama",
        vocab_size=61,
        hidden_size=32,
        heads=2,
        kv_heads=1,
        head_dim=16,
        feed_forward=40,
        context=1024,
        norm=Norm(1e-5),
        blocks=blocks,
    )
    mx.random.seed(5)
    decoder = Decoder(config)
    for block in decoder.model.layers:
        block.self_attn.q_proj.weight = block.self_attn.q_proj.weight * 6
    return MlxEngine(decoder, "tiny", "0")
