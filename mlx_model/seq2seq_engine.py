"""Encoder-decoders on MLX: an engine and its sessions."""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import mlx.core as mx
from mlx.utils import tree_flatten

from ..runtime.batch import SequentialBatch
from ..runtime.engine import EngineInfo
from ..runtime.seq2seq import ENDLESS, Seq2SeqSession, banned_tokens, refuse_restore
from .checkpoints.checkpoint import Checkpoint
from .encoder_load import load_seq2seq
from .mlx_stack_ops import BiasedCache, CrossCache, MlxStackOps, Padding


class MlxSeq2SeqEngine:
    """Fulfils `runtime.engine.Engine`, in float32 whatever the checkpoint is in.

    T5's activations leave float16's range.
    """

    xp: ModuleType = mx

    def __init__(self, checkpoint: Checkpoint, name: str):
        """Raises InputError as `load_seq2seq` does."""
        self.model = load_seq2seq(checkpoint, mx.float32)
        config, stack = self.model.config, self.model.config.decoder
        self.banned = banned_tokens(checkpoint.generation_config, checkpoint.config)
        self.info = EngineInfo(
            backend="mlx",
            model=name,
            fingerprint=f"mlx-{checkpoint.fingerprint}",
            vocab_size=config.vocab_size,
            context=config.context or ENDLESS,
            weight_bytes=sum(array.nbytes for _, array in tree_flatten(self.model.parameters())),
            kv_bytes_per_token=2 * stack.layers * stack.heads * stack.head_dim * 4,
        )

    def memory_needed(self, length: int) -> int:
        return length * self.info.kv_bytes_per_token

    def open(self, capacity: int | None = None) -> "MlxSeq2SeqSession":
        return MlxSeq2SeqSession(self)

    def open_batch(self, slots: int, capacity: int) -> SequentialBatch:
        return SequentialBatch(self, slots, capacity)

    def restore(self, path: Path) -> tuple["MlxSeq2SeqSession", list[int]]:
        """Raises InputError: there is nothing that could be restored."""
        raise refuse_restore()


class MlxSeq2SeqSession(Seq2SeqSession):
    """One sequence: the decoder's caches, and the encoder's keys and values."""

    def __init__(self, engine: MlxSeq2SeqEngine):
        super().__init__(engine.info, engine.model.config.start_token, engine.banned)
        self._engine = engine
        self._caches: list[BiasedCache] = []
        self._crosses: list[CrossCache] = []

    def fork(self) -> "MlxSeq2SeqSession":
        other = MlxSeq2SeqSession(self._engine)
        other._prompt, other._reply = list(self._prompt), list(self._reply)
        other._caches = [cache.fork() for cache in self._caches]
        other._crosses = self._crosses  # which do not change
        return other

    def _encode(self, prompt: list[int]) -> None:
        model, ids = self._engine.model, mx.array([prompt])
        mask = mx.ones_like(ids)
        config = model.config
        memory = model.encode(MlxStackOps(), ids, [Padding(mask)] * config.encoder.layers)
        self._caches = [BiasedCache() for _ in range(config.decoder.layers)]
        self._crosses = [CrossCache(memory, mask) for _ in range(config.decoder.layers)]

    def _decode(self, tokens: Sequence[int], last: int) -> mx.array:
        ids = mx.array([list(tokens)])
        logits = self._engine.model.decode(MlxStackOps(last), ids, self._caches, self._crosses)
        mx.eval(logits, [c.state for c in self._caches], [c.state for c in self._crosses])
        return logits[0]

    def _truncate(self, length: int) -> None:
        for cache in self._caches:
            cache.rollback(length)
