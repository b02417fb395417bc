"""The MLX engine: the decoder behind the engine protocol of `runtime.engine`."""

import json
from pathlib import Path
from types import ModuleType

import mlx.core as mx
from mlx.utils import tree_flatten

from ..kernels.dispatch import attention_mode
from ..runtime.batch import SequentialBatch, check_batch
from ..runtime.engine import Batch, EngineInfo
from ..runtime.errors import InputError
from ..runtime.memory import check_memory
from .batch import MlxBatch
from .caches.full import KVCache
from .caches.storage import PLAIN, Affine, Storage
from .caches.window import MARGIN, WindowCache
from .checkpoints.checkpoint import Checkpoint
from .config import BlockConfig
from .decoder import Decoder
from .load import load_decoder
from .session import MlxSession


class MlxEngine:
    """A decoder ready to open sessions; fulfils `runtime.engine.Engine`."""

    xp: ModuleType = mx

    def __init__(self, decoder: Decoder, name: str, fingerprint: str, kv_bits: int | None = None):
        """Sessions keep keys and values as they come, or in `kv_bits` (4 or 8) bits each; a layer
        with a sliding window keeps those of the window alone.

        Raises InputError for other `kv_bits`, for heads that cannot be packed, and for weights
        that do not fit into memory.
        """
        config = decoder.config
        self._decoder = decoder
        self._storage = _storage(kv_bits, config.head_dim)
        parameters = [array for _, array in tree_flatten(decoder.parameters())]
        self._row_bytes = config.kv_heads * self._storage.row_bytes(
            config.head_dim, _kv_dtype(decoder)
        )
        self.info = EngineInfo(
            backend="mlx",
            model=name,
            fingerprint=f"mlx-{fingerprint}" + (f"-kv{kv_bits}" if kv_bits else ""),
            vocab_size=config.vocab_size,
            context=config.context,
            weight_bytes=sum(array.nbytes for array in parameters),
            kv_bytes_per_token=config.layers * self._row_bytes,
        )
        check_memory(self.info.weight_bytes, f"the weights of {name}")
        mx.eval(parameters)

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, name: str, kv_bits: int | None = None
    ) -> "MlxEngine":
        """Load a checkpoint: float32 on a CPU, where half precision is slow, else as stored.

        Raises InputError as the constructor does, and for a PIPPIN_ATTENTION that means nothing.
        """
        try:
            attention_mode()
        except ValueError as error:
            raise InputError(str(error)) from None
        dtype = mx.float32 if mx.default_device() == mx.Device(mx.cpu) else None
        return cls(load_decoder(checkpoint, dtype), name, checkpoint.fingerprint, kv_bits)

    @property
    def decoder(self) -> Decoder:
        """The model itself, for parity and insight."""
        return self._decoder

    def memory_needed(self, length: int) -> int:
        windows = (block.window for block in self._decoder.config.blocks)
        kept = (min(length, window + MARGIN) if window else length for window in windows)
        return sum(kept) * self._row_bytes

    def open(self, capacity: int | None = None) -> "MlxSession":
        check_memory(self.memory_needed(capacity or 0), f"a KV cache of {capacity} tokens")
        caches = [self._cache(block) for block in self._decoder.config.blocks]
        return MlxSession(self, self._decoder, caches)

    def open_batch(self, slots: int, capacity: int) -> Batch:
        if self._decoder.config.rope_switch is not None:
            return SequentialBatch(self, slots, capacity)
        check_batch(self, slots, capacity)
        return MlxBatch(self, self._decoder, self._storage, slots, capacity)

    def _cache(self, block: BlockConfig) -> KVCache:
        return WindowCache(block.window, self._storage) if block.window else KVCache(self._storage)

    def restore(self, path: Path) -> tuple["MlxSession", list[int]]:
        try:
            arrays, metadata = mx.load(str(path), format="safetensors", return_metadata=True)
            tokens = json.loads(metadata["tokens"])
            fingerprint = metadata["fingerprint"]
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            raise InputError(f"{path} is no saved KV cache ({error}); delete it") from error
        if fingerprint != self.info.fingerprint:
            raise InputError(
                f"{path} was saved from another model, backend or kind of cache ({fingerprint}); "
                f"this one is {self.info.fingerprint}"
            )
        session = self.open()
        session.load(arrays, tokens)
        return session, tokens


def _storage(kv_bits: int | None, head_dim: int) -> Storage:
    """How caches hold keys and values of `head_dim`. Raises InputError."""
    if kv_bits is None:
        return PLAIN
    if kv_bits not in (4, 8):
        raise InputError(f"kv_bits is {kv_bits!r}; it takes 4 or 8, or none for a plain cache")
    if head_dim % 32:
        raise InputError(
            f"this model's head_dim is {head_dim}, which does not divide into groups of 32 values "
            "as a quantized KV cache needs; load it without kv_bits"
        )
    return Affine(kv_bits, group_size=32 if head_dim % 64 else 64)


def _kv_dtype(decoder: Decoder) -> mx.Dtype:
    """Keys and values come out of the norm's and the projections' float type."""
    return decoder.model.norm.weight.dtype
