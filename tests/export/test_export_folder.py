"""`export_folder`: whole or not at all, refusals in one line, and the files beside the graph."""

import errno
import json
import subprocess
import sys

import mlx.core as mx
import pytest

import pippin
from pippin.export import external_data, folder, graph, sidecars
from pippin.export.folder import export_folder
from pippin.mlx_model.checkpoints import whole_folder
from pippin.mlx_model.checkpoints.checkpoint import Checkpoint
from pippin.mlx_model.load import load_decoder
from pippin.runtime.errors import InputError
from support.exported import PlainRun, random_ids, store, tiny_checkpoint


@pytest.fixture
def checkpoint(tmp_path):
    return tiny_checkpoint(tmp_path / "tiny")


@pytest.fixture
def place(tmp_path):
    """A directory with nothing else in it."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def fail(monkeypatch, module, name, error, calls=0):
    """Let `module.name` raise `error`, after so many calls that work."""
    original, count = getattr(module, name), 0

    def failing(*arguments, **named):
        nonlocal count
        count += 1
        if count > calls:
            raise error
        return original(*arguments, **named)

    monkeypatch.setattr(module, name, failing)


FULL = OSError(errno.ENOSPC, "No space left on device")
POINTS = {
    "first tensor": (external_data.ExternalData, "add", 0),
    "a later tensor": (external_data.ExternalData, "add", 9),
    "closing the data": (external_data.os, "fsync", 0),
    "the graph": (graph.GraphBuilder, "model", 0),
    "a side file": (sidecars, "write_text", 1),
    "the last side file": (sidecars, "write_text", 3),
    "the rename": (whole_folder, "_replace", 0),
}


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt(), MemoryError()], ids=repr)
@pytest.mark.parametrize("point", POINTS)
def test_nothing_half_written_is_left(point, error, existing, checkpoint, place, monkeypatch):
    out = place / "out"
    if existing:
        export_folder(checkpoint, out, weights="fp32")
        before = {p.relative_to(out): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    fail(monkeypatch, *POINTS[point][:2], error, POINTS[point][2])
    expected = InputError if error is FULL else type(error)
    with pytest.raises(expected) as raised:
        export_folder(checkpoint, out, weights="q4", overwrite=True)
    if error is FULL:
        assert str(raised.value).startswith(f"no space left on the disk of {out}")
        assert "\n" not in str(raised.value)
    assert [p.name for p in place.iterdir()] == (["out"] if existing else [])
    if existing:
        after = {p.relative_to(out): p.read_bytes() for p in out.rglob("*") if p.is_file()}
        assert after == before


def test_a_failed_second_rename_brings_the_old_folder_back(checkpoint, place, monkeypatch):
    out = export_folder(checkpoint, place / "out", weights="fp32")
    original = folder.Path.rename

    def rename(path, target):
        if path.name.endswith(".partial"):
            raise FULL
        return original(path, target)

    monkeypatch.setattr(folder.Path, "rename", rename)
    with pytest.raises(InputError, match="no space left"):
        export_folder(checkpoint, out, weights="q4", overwrite=True)
    assert [p.name for p in place.iterdir()] == ["out"]
    assert [p.name for p in out.glob("onnx/*.onnx")] == ["model.onnx"]


def test_new_parents_go_with_a_failed_export(checkpoint, place, monkeypatch):
    fail(monkeypatch, graph.GraphBuilder, "model", FULL)
    with pytest.raises(InputError):
        export_folder(checkpoint, place / "a" / "b" / "out")
    assert list(place.iterdir()) == []
    monkeypatch.undo()
    assert export_folder(checkpoint, place / "a" / "b" / "out").is_dir()


def test_a_really_full_disk(checkpoint, place):
    """/dev/full stands in for the data file's disk."""
    code = (
        "import sys; from pathlib import Path\n"
        "from pippin.export import external_data\n"
        "from pippin.export.folder import export_folder\n"
        "from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint\n"
        "from pippin.runtime.errors import InputError\n"
        "opened = Path.open\n"
        "def full(self, *a, **k):\n"
        "    return opened(Path('/dev/full') if 'onnx_data' in self.name else self, *a, **k)\n"
        "Path.open = full\n"
        "try: export_folder(open_checkpoint(Path(sys.argv[1])), Path(sys.argv[2]))\n"
        "except InputError as error: print(error)\n"
    )
    if sys.platform != "linux":
        pytest.skip("/dev/full is Linux's")
    command = [sys.executable, "-c", code, str(checkpoint.path), str(place / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("no space left on the disk of")
    assert list(place.iterdir()) == []


def test_what_may_be_replaced(checkpoint, place):
    out = place / "out"
    out.mkdir()
    assert export_folder(checkpoint, out, weights="fp32") == out  # empty: fine
    with pytest.raises(InputError, match="exists; allow overwriting"):
        export_folder(checkpoint, out)
    export_folder(checkpoint, out, weights="q4", kv="fp32", overwrite=True)
    assert [p.name for p in out.glob("onnx/*.onnx")] == ["model_q4.onnx"]


@pytest.mark.parametrize("content", ["notes.txt", "onnx/model.onnx", "config.json"])
def test_what_is_not_ours_is_never_replaced(content, checkpoint, place):
    file = place / "out" / content
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(InputError, match="no export wrote it"):
        export_folder(checkpoint, place / "out", overwrite=True)
    assert file.read_text() == "mine"
    with pytest.raises(InputError, match="is a file"):
        export_folder(checkpoint, file, overwrite=True)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"weights": "q5"}, "no weights 'q5'; choose fp32, fp16, q4, int8"),
        ({"dialect": "tflite"}, "no dialect 'tflite'; choose gqa, standard"),
        ({"context": 0}, "context 0 is out of range"),
        ({"context": 513}, "context 513 is out of range: .* 1 to 512"),
    ],
)
def test_settings_are_refused_in_one_line(options, complaint, checkpoint, place):
    with pytest.raises(InputError, match=complaint) as raised:
        export_folder(checkpoint, place / "out", **options)
    assert "\n" not in str(raised.value)
    assert list(place.iterdir()) == []


def test_heads_that_gqa_cannot_take(tmp_path, place):
    checkpoint = tiny_checkpoint(tmp_path / "tiny", head_dim=20)
    with pytest.raises(InputError, match=r"20 dimensions.*dialect standard"):
        export_folder(checkpoint, place / "out")
    assert export_folder(checkpoint, place / "out", dialect="standard").is_dir()


def test_weights_beyond_float16(checkpoint, place):
    decoder = load_decoder(checkpoint, mx.float32)
    layer = decoder.model.layers[1].mlp.up_proj
    layer.weight = layer.weight * 1e6
    checkpoint = store(checkpoint, decoder)
    with pytest.raises(InputError, match=r"layers\.1\.mlp\.up_proj has values beyond .* float16"):
        export_folder(checkpoint, place / "out", weights="fp16")
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("weights", ["fp32", "q4"])
def test_progress_rises_to_the_total(weights, checkpoint, place):
    seen = []
    export_folder(
        checkpoint, place / "out", weights=weights, progress=lambda *pair: seen.append(pair)
    )
    done = [pair[0] for pair in seen]
    assert done == sorted(done)
    assert len(set(done)) > 10
    assert seen[-1][0] == seen[-1][1] > 0


def test_side_files(checkpoint, place):
    config = {**checkpoint.config, "quantization": {"bits": 4, "group_size": 32}}
    generation = {"eos_token_id": [2, 7], "temperature": 0.6}
    changed = Checkpoint(checkpoint.path, config, generation, "", {}, checkpoint.fingerprint)
    out = export_folder(changed, place / "out", weights="fp16", context=300)
    read = {p.name: json.loads(p.read_text()) for p in out.glob("*.json")}
    assert set(read) == {"config.json", "generation_config.json", "genai_config.json"}
    config = read["config.json"]
    assert "quantization" not in config
    assert config["head_dim"] == 16
    assert config["num_key_value_heads"] == 2
    assert config["transformers.js_config"]["use_external_data_format"] == {"model_fp16.onnx": 1}
    assert config["transformers.js_config"]["kv_cache_dtype"]["fp16"] == "float16"
    assert read["generation_config.json"] == {"eos_token_id": [2, 7], "temperature": 0.6}
    genai = read["genai_config.json"]
    assert genai["model"]["eos_token_id"] == [2, 7]
    assert genai["model"]["type"] == "decoder"
    assert genai["model"]["decoder"]["filename"] == "onnx/model_fp16.onnx"
    assert genai["search"]["past_present_share_buffer"] is True
    assert genai["search"]["max_length"] == 300
    assert "null" not in (out / "genai_config.json").read_text()
    assert "Pad batches on the right" in (out / "README.md").read_text()


def test_the_dialect_decides_on_shared_buffers(checkpoint, place):
    out = export_folder(checkpoint, place / "out", weights="fp32", dialect="standard")
    genai = json.loads((out / "genai_config.json").read_text())
    assert genai["search"]["past_present_share_buffer"] is False
    assert "either side" in (out / "README.md").read_text()


def test_the_package_is_callable(checkpoint, place):
    out = pippin.export(checkpoint.path, place / "out", weights="fp32")
    assert PlainRun(out)(random_ids(3)).shape == (1, 3, 97)
    assert pippin.export.folder.export_folder is export_folder
