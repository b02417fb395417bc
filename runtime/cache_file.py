"""A saved KV cache: one uncompressed .npz file with the tokens and the layers' keys and values."""

import json
import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from .errors import InputError

_FORMAT = 1


def write_cache(
    path: Path,
    fingerprint: str,
    tokens: Sequence[int],
    layers: Iterator[tuple[np.ndarray, np.ndarray]],
) -> None:
    """Write keys and values [K, S, D] of each layer, one layer in memory at a time, atomically."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    header = {"format": _FORMAT, "fingerprint": fingerprint, "length": len(tokens)}
    try:
        with zipfile.ZipFile(partial, "w") as archive:
            _add(archive, "header", np.frombuffer(json.dumps(header).encode(), np.uint8))
            _add(archive, "tokens", np.array(tokens, np.int64))
            for index, (keys, values) in enumerate(layers):
                _add(archive, f"{index}.keys", keys)
                _add(archive, f"{index}.values", values)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


class CacheFile:
    """Reads what `write_cache` wrote; every array is checked by zip's CRC as it is read.

    Raises InputError when the file is missing, damaged, or not of `fingerprint`.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self._path = path
        try:
            self._archive = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise self._unreadable(error) from error
        header = self._header()
        if header.get("fingerprint") != fingerprint:
            raise InputError(
                f"{path} was saved from another model, weights or backend "
                f"({header.get('fingerprint')}); this one is {fingerprint}"
            )
        self.tokens: list[int] = self.array("tokens").tolist()
        if len(self.tokens) != header.get("length"):
            raise self._unreadable("the number of tokens is wrong")

    def __enter__(self) -> "CacheFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def array(
        self, name: str, shape: tuple[int, ...] | None = None, dtype: type | None = None
    ) -> np.ndarray:
        """One array, of the `shape` and `dtype` expected."""
        try:
            with self._archive.open(f"{name}.npy") as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
                file.read(1)  # at the end of the member zipfile compares the CRC
        except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise self._unreadable(error) from error
        if shape is not None and (array.shape != shape or array.dtype != dtype):
            found, wanted = f"{array.dtype} {array.shape}", f"{np.dtype(dtype)} {shape}"
            raise self._unreadable(f"{name} is {found}, not {wanted}")
        return array

    def _header(self) -> dict:
        try:
            header = json.loads(self.array("header").tobytes())
        except ValueError as error:
            raise self._unreadable(error) from error
        if not isinstance(header, dict) or header.get("format") != _FORMAT:
            raise self._unreadable("its format is another one")
        return header

    def _unreadable(self, reason: object) -> InputError:
        return InputError(f"{self._path} is no saved KV cache ({reason}); delete it")


def _add(archive: zipfile.ZipFile, name: str, array: np.ndarray) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
