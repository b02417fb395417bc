"""--adapter on the command line: the same tokens as PEFT's on every way to them."""

import json
from pathlib import Path
from typing import Any

import pytest

from pippin.mlx_model.adapters import with_adapter
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from support.adapters import TinyAdapter, make_peft
from support.command_line import Run, make_chat_model, one_line, run_pippin

PROMPT = "Hello"
COUNT = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint made for chat; tests must not change it."""
    return make_chat_model(tmp_path_factory.mktemp("models") / "tiny-chat", hidden_size=96)


@pytest.fixture(scope="module")
def adapter(model: Path) -> TinyAdapter:
    return make_peft(model.parent / "adapter", model, target_modules="all-linear", use_dora=True)


@pytest.fixture(scope="module")
def wanted(adapter: TinyAdapter) -> list[int]:
    """Greedy tokens by PEFT; a token of the prompt is a byte."""
    ids = list(PROMPT.encode())
    for _ in range(COUNT):
        ids.append(int(adapter.logits(ids)[-1].argmax()))
    return ids[len(PROMPT) :]


@pytest.fixture
def pippin(tmp_path: Path):
    """`pippin` with an empty store, whose folder is PIPPIN_HOME."""

    def run(*args: object, **env: str) -> Run:
        return run_pippin(*args, env={"PIPPIN_HOME": str(tmp_path / "home"), **env})

    return run


def tokens(pippin: Any, *args: object, **env: str) -> list[int]:
    options = ("--raw", "--json", "--ignore-eos", "--max-tokens", COUNT, "--temperature", 0)
    run = pippin("generate", *args, PROMPT, *options, **env)
    assert run.code == 0, run.err
    return json.loads(run.out)["tokens"]


@pytest.mark.parametrize("backend", [["mlx"], ["onnx", "--weights", "fp32"]], ids=lambda b: b[0])
def test_generate(
    backend: list[str],
    model: Path,
    adapter: TinyAdapter,
    wanted: list[int],
    pippin: Any,
    tmp_path: Path,
) -> None:
    args = (model, "--backend", *backend)
    plain = tokens(pippin, *args)
    assert plain != wanted
    assert tokens(pippin, *args, "--adapter", adapter.path) == wanted
    assert tokens(pippin, *args, PIPPIN_GENERATE_ADAPTER=str(adapter.path)) == wanted
    exports = sorted(tmp_path.glob("home/exports/*/*"))
    assert len(exports) == (2 if backend[0] == "onnx" else 0)
    assert len({folder.parent for folder in exports}) <= 1  # they go with their model
    before = [folder.stat().st_mtime_ns for folder in exports]
    assert tokens(pippin, *args) == plain
    assert [folder.stat().st_mtime_ns for folder in exports] == before


def test_chat(model: Path, adapter: TinyAdapter, pippin: Any) -> None:
    options = ("--backend", "mlx", "--max-tokens", 8, "--ignore-eos", "--temperature", 0)

    def reply(*more: object) -> str:
        run = run_pippin("chat", model, *options, *more, stdin=b"Hello\n")
        assert run.code == 0, run.err
        return run.out

    assert reply() != reply("--adapter", adapter.path)


def test_export(
    model: Path, adapter: TinyAdapter, wanted: list[int], pippin: Any, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run = pippin("export", model, "-o", out, "--weights", "fp32", "--adapter", adapter.path)
    assert run.code == 0, run.err
    assert tokens(pippin, out) == wanted
    run = pippin("generate", out, "hi", "--adapter", adapter.path)
    assert run.code == 2
    assert "fused at export; export the checkpoint again with --adapter" in one_line(run)


def test_inspect(model: Path, adapter: TinyAdapter, pippin: Any) -> None:
    run = pippin("inspect", model, "--adapter", adapter.path)
    assert run.code == 0, run.err
    trained = sum(
        p.numel() for n, p in adapter.reference.reference.named_parameters() if "lora" in n
    )
    # all-linear is the seven projections of each of the three layers
    assert f"Adapter: PEFT DoRA, {trained:,} parameters in 21 layers" in run.out
    plain = json.loads(pippin("inspect", model, "--json").out)
    assert plain["adapter"] is None
    document = json.loads(pippin("inspect", model, "--json", "--adapter", adapter.path).out)
    assert document["adapter"]["added_bytes"] == 0
    assert document["costs"] == plain["costs"]


def test_parity(model: Path, adapter: TinyAdapter, pippin: Any) -> None:
    run = pippin("parity", model, "--tokens", 40, "--adapter", adapter.path, "--json")
    rows = {row["pair"]: row for row in json.loads(run.out) if row["measure"].startswith("max")}
    assert rows["MLX fp32 vs numpy float64"]["ok"]
    assert rows["ONNX fp32 vs MLX fp32"]["ok"]


def test_an_adapter_of_another_model_is_refused(model: Path, tmp_path: Path, pippin: Any) -> None:
    other = make_chat_model(tmp_path / "other", hidden_size=48)
    adapter = make_peft(tmp_path / "adapter", other, target_modules=["q_proj"])
    run = pippin("generate", model, "hi", "--backend", "mlx", "--adapter", adapter.path)
    assert run.code == 2
    assert "the checkpoint [96, 96]; it is another model's" in one_line(run)
    run = pippin("generate", model, "hi", "--adapter", model)
    assert run.code == 2
    assert "holds no adapter" in one_line(run)


def test_a_saved_cache_is_not_taken_for_another_adapters(
    model: Path, adapter: TinyAdapter, tmp_path: Path
) -> None:
    from pippin.mlx_model.engine import MlxEngine
    from pippin.runtime.errors import InputError

    plain = open_checkpoint(model)
    engines = [
        MlxEngine.from_checkpoint(checkpoint, "tiny")
        for checkpoint in (plain, with_adapter(plain, adapter.path))
    ]
    session = engines[0].open()
    session.prefill([1, 2, 3])
    session.save(tmp_path / "cache", [1, 2, 3])
    with pytest.raises(InputError, match="saved from another model"):
        engines[1].restore(tmp_path / "cache")
