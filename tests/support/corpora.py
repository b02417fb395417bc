"""Public vocabularies with reference ids, and public chat templates, that none of us wrote.

They come from the `llama-cpp-python` source distribution: `models/ggml-vocab-*.gguf` with `.inp`
(texts) and `.out` (their ids, without BOS or EOS, control tokens in a text taken as plain text),
and `models/templates/*.jinja`.
"""

import functools
from pathlib import Path
from typing import Any

from pippin.mlx_model.checkpoints.gguf import read_gguf_metadata
from pippin.mlx_model.checkpoints.gguf_tokenizer import convert_gguf_tokenizer
from pippin.runtime.tokenizer import Tokenizer

from .wheels import sdist_dir

_MODELS = "vendor/llama.cpp/models"
_SEPARATOR = "\n__ggml_vocab_test__\n"


def models_dir() -> Path:
    return sdist_dir("llama-cpp-python", "0.3.36", members=_MODELS) / _MODELS


def vocabulary_names() -> list[str]:
    """All vocabularies of the corpus, those without reference ids included."""
    files = models_dir().glob("ggml-vocab-*.gguf")
    return sorted(file.stem.removeprefix("ggml-vocab-") for file in files)


def vocabulary_metadata(name: str) -> dict[str, Any]:
    return read_gguf_metadata(models_dir() / f"ggml-vocab-{name}.gguf")


@functools.lru_cache(maxsize=2)
def converted(name: str) -> tuple[str, dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json of one vocabulary."""
    return convert_gguf_tokenizer(vocabulary_metadata(name))


@functools.lru_cache(maxsize=4)
def vocabulary(name: str) -> Tokenizer:
    return Tokenizer.from_parts(*converted(name), {}, {})


def reference_ids(name: str) -> list[tuple[str, list[int]]]:
    """Texts and their reference ids."""
    stem = models_dir() / f"ggml-vocab-{name}.gguf"
    texts = Path(f"{stem}.inp").read_bytes().decode("utf-8").split(_SEPARATOR)
    lines = Path(f"{stem}.out").read_text("utf-8").splitlines()
    if not texts[-1]:
        texts.pop()
    return [
        (text, [int(index) for index in line.split()])
        for text, line in zip(texts, lines, strict=True)
    ]


def template_sources() -> dict[str, str]:
    """All chat templates of the corpus, by name."""
    files = sorted((models_dir() / "templates").glob("*.jinja"))
    return {file.stem: file.read_bytes().decode("utf-8") for file in files}
