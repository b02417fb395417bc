"""Texts to vectors on MLX, from a checkpoint."""

from types import ModuleType

import mlx.core as mx
import numpy as np

from ..runtime.embedder import Embedder
from ..runtime.recipe import read_recipe
from .checkpoints.checkpoint import Checkpoint
from .encoder import Encoder
from .encoder_load import load_encoder
from .mlx_stack_ops import MlxStackOps, Padding


class MlxEmbedder(Embedder):
    """Fulfils `Embedder` with an encoder on MLX, in float32 whatever the checkpoint is in."""

    backend = "mlx"
    xp: ModuleType = mx

    def __init__(self, checkpoint: Checkpoint):
        """Raises InputError as `load_encoder` and `read_recipe` do."""
        self.encoder: Encoder = load_encoder(checkpoint, mx.float32)
        config = self.encoder.config
        super().__init__(
            checkpoint.tokenizer_json,
            read_recipe(checkpoint.path),
            vocab_size=config.vocab_size,
            context=config.stack.context,
            dimension=config.stack.hidden_size,
        )

    def hidden(self, ids: np.ndarray, mask: np.ndarray) -> mx.array:
        caches = [Padding(mx.array(mask))] * self.encoder.config.stack.layers
        tokens = mx.array(ids)
        return self.encoder(MlxStackOps(), tokens, mx.zeros_like(tokens), caches)
