"""What is particular to a family (norms on heads, windows, experts) runs in every consumer too."""

import functools
from pathlib import Path
from typing import Any

import pytest

from pippin.export.folder import export_folder
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from support.consumer_packages import Missing
from support.consumers import CONSUMERS, WEBGPU, Consumer, Failed, run_consumer
from support.families import ROWS
from support.tiny import make_tiny

FAMILIES = ("qwen3", "gemma3-text", "qwen3-moe")
WEIGHTS = ("fp32", "q4")
# Prompt and reply pass the window of the tiny Gemma 3, 16 tokens.
ASKED = {"prompt_ids": [5, 9, 33, 2, 61, 7, 8, 90, 11, 3, 4, 17, 50, 21], "new_tokens": 6}
_ROWS = {row.name: row for row in ROWS}
# What a consumer cannot do, whoever wrote the folder, and how it says so.
_WITHOUT_HEAD_DIM = "index: 3 Got: 16 Expected: 32"  # optimum: hidden_size / heads for this family
_WITHOUT_FAMILY = "Unsupported model type: qwen3_moe"
_BEFORE_1_31 = "Unrecognized attribute: accuracy_level for operator QMoE"
_OF_1_32 = ("onnxruntime-genai", "optimum-onnx", "C API, shared buffers")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    home = tmp_path_factory.mktemp("families")

    @functools.cache
    def export(family: str, weights: str) -> Path:
        row = _ROWS[family]
        name = f"{family}-{weights}"
        tiny = make_tiny(home / f"{name}-checkpoint", row.kind, row.seed, **row.config)
        return export_folder(open_checkpoint(tiny.path), home / name, weights=weights)

    return export


@pytest.fixture(scope="module")
def expected(folders: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What plain onnxruntime says."""
    scratch = tmp_path_factory.mktemp("reference")

    @functools.cache
    def tokens(family: str, weights: str) -> list[int]:
        folder = folders(family, weights)
        return run_consumer(CONSUMERS[0], folder, weights, ASKED, scratch)["tokens"]

    return tokens


@pytest.mark.slow  # all of them together
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("consumer", [*CONSUMERS[1:], WEBGPU], ids=lambda consumer: consumer.name)
def test_the_consumer_gives_the_tokens_of_plain_onnxruntime(
    consumer: Consumer,
    family: str,
    weights: str,
    folders: Any,
    expected: Any,
    tmp_path: Path,
) -> None:
    refusal = _refusal(consumer, family, weights)
    try:
        if refusal is not None:
            with pytest.raises(Failed, match=refusal):
                run_consumer(consumer, folders(family, weights), weights, ASKED, tmp_path)
            return
        answer = run_consumer(consumer, folders(family, weights), weights, ASKED, tmp_path)
    except Missing as error:
        pytest.skip(f"skipped, because {consumer.name} cannot be run here: {error}")
    assert answer["tokens"] == expected(family, weights)


def _refusal(consumer: Consumer, family: str, weights: str) -> str | None:
    if consumer.name == "optimum-onnx" and family == "qwen3":
        return _WITHOUT_HEAD_DIM
    if consumer.name == "transformers.js v3, Node" and family == "qwen3-moe":
        return _WITHOUT_FAMILY
    if consumer.name not in _OF_1_32 and (family, weights) == ("qwen3-moe", "q4"):
        return _BEFORE_1_31
    return consumer.refuses.get(weights)
