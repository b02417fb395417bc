"""The MLX engine: the decoder behind the engine protocol of `runtime.engine`."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import mlx.core as mx
from mlx.utils import tree_flatten

from ..kernels.dispatch import attention_mode
from ..runtime.engine import Choose, EngineInfo, Progress, check_room, check_tokens
from ..runtime.errors import Cancelled, InputError
from ..runtime.memory import check_memory
from .caches.full import KVCache
from .caches.storage import PLAIN, Affine, Storage
from .checkpoints.checkpoint import Checkpoint
from .decoder import Decoder
from .load import load_decoder
from .mlx_ops import MlxOps

_CHUNK = 512  # tokens of one prefill call
_LAST, _ALL = MlxOps(last=1), MlxOps(last=0)


class MlxEngine:
    """A decoder ready to open sessions; fulfils `runtime.engine.Engine`."""

    xp: ModuleType = mx

    def __init__(self, decoder: Decoder, name: str, fingerprint: str, kv_bits: int | None = None):
        """Sessions keep keys and values as they come, or in `kv_bits` (4 or 8) bits each.

        Raises InputError for other `kv_bits`, for heads that cannot be packed, and for weights
        that do not fit into memory.
        """
        config = decoder.config
        self._decoder = decoder
        self._storage = _storage(kv_bits, config.head_dim)
        parameters = [array for _, array in tree_flatten(decoder.parameters())]
        row_bytes = self._storage.row_bytes(config.head_dim, _kv_dtype(decoder))
        self.info = EngineInfo(
            backend="mlx",
            model=name,
            fingerprint=f"mlx-{fingerprint}" + (f"-kv{kv_bits}" if kv_bits else ""),
            vocab_size=config.vocab_size,
            context=config.context,
            weight_bytes=sum(array.nbytes for array in parameters),
            kv_bytes_per_token=config.layers * config.kv_heads * row_bytes,
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
        return length * self.info.kv_bytes_per_token

    def open(self, capacity: int | None = None) -> "MlxSession":
        check_memory(self.memory_needed(capacity or 0), f"a KV cache of {capacity} tokens")
        layers = self._decoder.config.layers
        return MlxSession(self, [KVCache(self._storage) for _ in range(layers)])

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
        for index, cache in enumerate(session.caches):
            mark = f"{index}."
            cache.load({n.removeprefix(mark): a for n, a in arrays.items() if n.startswith(mark)})
        return session, tokens


class MlxSession:
    """One sequence on the MLX engine; fulfils `runtime.engine.Session`."""

    def __init__(self, engine: MlxEngine, caches: list[KVCache]):
        self._engine = engine
        self.caches = caches  # one a layer

    @property
    def length(self) -> int:
        return self.caches[0].length

    def prefill(
        self,
        tokens: Sequence[int],
        *,
        progress: Progress | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> mx.array:
        self._check(tokens)
        added = self._engine.memory_needed(len(tokens))
        check_memory(added, f"a KV cache of {self.length + len(tokens)} tokens")
        for start in range(0, len(tokens), _CHUNK):
            if should_stop is not None and should_stop():
                raise Cancelled("prefill was stopped")
            logits = self._forward(tokens[start : start + _CHUNK], _LAST)
            mx.eval(logits, [cache.state for cache in self.caches])
            if progress is not None:
                progress(min(start + _CHUNK, len(tokens)), len(tokens))
        return logits[-1]

    def step(self, token: int) -> mx.array:
        self._check([token])
        return self._forward([token], _LAST)[-1]

    def verify(self, tokens: Sequence[int]) -> mx.array:
        self._check(tokens)
        return self._forward(tokens, _ALL)

    def decode(self, logits: mx.array, choose: Choose) -> Iterator[int]:
        token = choose(logits, 0)
        mx.async_eval(token)
        index = known = 0  # `known` tokens of this call are in the caller's cache
        start = self.length
        try:
            while True:
                following = None
                if self.length < self._engine.info.context:
                    # The next step is under way before this token is read: the device never waits.
                    index += 1
                    following = choose(self._forward(token.reshape(1), _LAST)[-1], index)
                    mx.async_eval(following)
                yield token.item()
                check_room(start + known, 1, self._engine.info.context)
                known += 1
                token = following
        finally:
            self.rollback(start + known)

    def rollback(self, length: int) -> None:
        for cache in self.caches:
            cache.rollback(length)

    def fork(self) -> "MlxSession":
        return MlxSession(self._engine, [cache.fork() for cache in self.caches])

    def save(self, path: Path, tokens: Sequence[int]) -> None:
        arrays = {}
        for index, cache in enumerate(self.caches):
            arrays |= {f"{index}.{name}": array for name, array in cache.saved().items()}
        metadata = {
            "tokens": json.dumps(list(tokens)),
            "fingerprint": self._engine.info.fingerprint,
        }
        partial = path.with_name(f".{path.name}.{os.getpid()}.safetensors")
        try:
            mx.save_safetensors(str(partial), arrays, metadata)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def _forward(self, tokens: Sequence[int] | mx.array, ops: MlxOps) -> mx.array:
        """Append `tokens`; the logits [rows, V] of the rows that `ops` selects, unevaluated."""
        ids = mx.array(tokens, dtype=mx.int32)[None]  # [1, L]
        return self._engine.decoder(ops, ids, self.caches)[0]

    def _check(self, tokens: Sequence[int]) -> None:
        info = self._engine.info
        check_tokens(tokens, info.vocab_size)
        check_room(self.length, len(tokens), info.context)


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
