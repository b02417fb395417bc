"""Which backend a name gets, and the export that the onnx backend makes of a checkpoint."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pippin
from pippin.apps import models
from pippin.mlx_model.checkpoints import store
from pippin.runtime.errors import InputError
from support.command_line import make_chat_model, one_line, run_pippin


def _exports() -> list[Path]:
    return sorted(store.home().glob("exports/*/*"))


@pytest.fixture
def no_mlx(tmp_path: Path) -> dict[str, str]:
    """An environment in which MLX cannot be imported."""
    package = tmp_path / "no-mlx" / "mlx"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('no mlx here')")
    return {"PYTHONPATH": str(package.parent)}


def test_load_is_public(model: Path) -> None:
    generator = pippin.load(str(model), backend="mlx")
    assert isinstance(generator, pippin.Generator)
    assert generator.engine.info.backend == "mlx"
    assert generator.engine.info.model == str(model)


@pytest.mark.parametrize(
    ("platform", "has_mlx", "wanted"),
    [("darwin", True, "mlx"), ("darwin", False, "onnx"), ("linux", True, "onnx")],
)
def test_auto_is_mlx_on_a_mac_that_has_it(
    model: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    platform: str,
    has_mlx: bool,
    wanted: str,
) -> None:
    monkeypatch.setattr(models.sys, "platform", platform)
    monkeypatch.setattr(models, "has_mlx", lambda: has_mlx)
    monkeypatch.setattr(models, "export_once", lambda *_: folder)
    assert models.prepare(str(model)) == ((model if wanted == "mlx" else folder), wanted)
    assert models.prepare(str(folder)) == (folder, "onnx")


def test_unknown_backend(model: Path) -> None:
    with pytest.raises(InputError, match="no backend 'cuda'"):
        pippin.load(str(model), backend="cuda")


def test_a_checkpoint_is_exported_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def stages(title: str, unit: str):
        seen.append(title)
        return lambda done, total: None

    first, backend = models.prepare(str(model), "onnx", weights="fp32", stages=stages)
    assert backend == "onnx"
    assert _exports() == [first]
    assert seen == [f"fetching {model}", f"exporting {model}"]
    before = first.stat().st_mtime_ns
    second, _ = models.prepare(str(model), "onnx", weights="fp32", stages=stages)
    assert second == first
    assert first.stat().st_mtime_ns == before
    other, _ = models.prepare(str(model), "onnx", weights="int8")
    assert sorted([first, other]) == _exports()


def test_heads_that_the_fused_operator_does_not_take(tmp_path: Path) -> None:
    name = str(make_chat_model(tmp_path / "odd", head_dim=10))
    prompt, params = "Hi", pippin.SamplingParams(max_tokens=12, ignore_eos=True)
    exported = pippin.load(name, backend="onnx", weights="fp32").generate(prompt, params)
    assert exported.tokens == pippin.load(name, backend="mlx").generate(prompt, params).tokens


@pytest.mark.parametrize("file", ["model.safetensors", "generation_config.json"])
def test_a_changed_checkpoint_is_exported_anew(model: Path, tmp_path: Path, file: str) -> None:
    copy = Path(shutil.copytree(model, tmp_path / "copy"))
    first, _ = models.prepare(str(copy), "onnx")
    if file.endswith(".json"):
        (copy / file).write_text('{"eos_token_id": 257}')
    else:
        os.utime(copy / file, (1, 1))
    second, _ = models.prepare(str(copy), "onnx")
    assert first != second
    assert models.is_exported(second)


def test_a_changed_exporter_exports_anew(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = models.prepare(str(model), "onnx")
    other, _ = models.prepare(str(model), "onnx", weights="int8")
    sources = Path.read_text

    def read(path: Path, *args, **options) -> str:
        added = "# corrected" if path.name == "decoder.py" else ""
        return sources(path, *args, **options) + added

    monkeypatch.setattr(Path, "read_text", read)
    second, _ = models.prepare(str(model), "onnx")
    assert first != second
    assert _exports() == sorted([second, other])  # what it replaces is gone


def test_an_interrupted_export_leaves_nothing(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stages(title: str, unit: str):
        def interrupt(done: int, total: int | None) -> None:
            if title.startswith("exporting"):
                raise KeyboardInterrupt

        return interrupt

    with pytest.raises(KeyboardInterrupt):
        models.prepare(str(model), "onnx", stages=stages)
    assert not [path for path in store.home().glob("exports/**/*") if path.is_file()]
    folder, _ = models.prepare(str(model), "onnx")
    assert models.is_exported(folder)


_PREPARE = """
import sys
from pippin.apps import models
titles = []
def stages(title, unit):
    titles.append(title)
    return lambda done, total: None
path, _ = models.prepare(sys.argv[1], "onnx", stages=stages)
print(path, sum(title.startswith("exporting") for title in titles))
"""


def test_two_processes_export_once(model: Path) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _PREPARE, str(model)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    answers = [child.communicate(timeout=120)[0].split() for child in children]
    assert answers[0][0] == answers[1][0]
    assert sorted(count for _, count in answers) == ["0", "1"]
    assert _exports() == [Path(answers[0][0])]
    assert models.is_exported(Path(answers[0][0]))


def test_without_mlx_what_is_exported_runs(
    model: Path, folder: Path, no_mlx: dict[str, str]
) -> None:
    run = run_pippin("generate", folder, "Hi", "--max-tokens", 2, env=no_mlx)
    assert (run.code, run.err) == (0, "")
    exported, _ = models.prepare(str(model), "onnx")
    assert exported.exists()
    run = run_pippin("generate", model, "Hi", "--max-tokens", 2, env=no_mlx)
    assert (run.code, run.err) == (0, "")


@pytest.mark.parametrize(
    "args",
    [
        ("generate", "MODEL", "Hi", "--backend", "mlx"),
        ("generate", "MODEL", "Hi", "--backend", "onnx"),
        ("export", "MODEL"),
        ("parity", "MODEL"),
        ("inspect", "MODEL"),
        ("bench", "MODEL", "--backend", "mlx"),
    ],
)
def test_without_mlx_the_message_says_what_to_do(
    model: Path, no_mlx: dict[str, str], args: tuple[str, ...]
) -> None:
    run = run_pippin(*(model if arg == "MODEL" else arg for arg in args), env=no_mlx)
    line = one_line(run)
    assert "needs MLX, which cannot be imported here; it runs on macOS (arm64) and Linux" in line
    assert "--backend onnx" in line
    assert run.code == 2


def test_threads_and_weights_reach_onnxruntime(folder: Path, invoke) -> None:
    assert invoke("generate", folder, "Hi", "--max-tokens", 2, "--threads", 1).exit_code == 0
    with pytest.raises(InputError, match="q4"):
        invoke("generate", folder, "Hi", "--weights", "q4")


def test_kv_bits_reach_the_mlx_backend(tmp_path: Path, invoke) -> None:
    wide = make_chat_model(tmp_path / "wide", head_dim=32)
    plain = pippin.load(str(wide), backend="mlx").engine.info
    for bits in (4, 8):
        info = pippin.load(str(wide), backend="mlx", kv_bits=bits).engine.info
        assert info.kv_bytes_per_token < plain.kv_bytes_per_token
        assert info.fingerprint != plain.fingerprint
    args = ("--backend", "mlx", "--kv-bits", 8, "--max-tokens", 2)
    assert invoke("generate", wide, "Hi", *args).exit_code == 0
    assert invoke("chat", wide, *args, stdin=b"Hi\n").exit_code == 0


def test_kv_bits_from_the_environment(model: Path) -> None:
    env = {"PIPPIN_GENERATE_KV_BITS": "8"}
    run = run_pippin("generate", model, "Hi", "--backend", "mlx", env=env)
    assert "this model's head_dim is 16, which" in one_line(run)
    assert run.code == 2


def test_kv_bits_are_not_for_the_onnx_backend(model: Path, folder: Path) -> None:
    for name in (model, folder):
        run = run_pippin("generate", name, "Hi", "--backend", "onnx", "--kv-bits", 4)
        assert "--kv-bits is for --backend mlx" in one_line(run)
        assert run.code == 2
    assert not _exports()
