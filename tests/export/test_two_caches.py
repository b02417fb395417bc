"""One folder, two graphs on the same weights: the portable one, and one with an int8 KV cache."""

import os

import numpy as np
import onnxruntime as ort
import pytest

from pippin.export import graph
from pippin.export.folder import export_folder
from pippin.export.int8_attention import SHORT
from pippin.export.verify import verify_folder
from pippin.runtime import ort_graph
from pippin.runtime.errors import InputError
from pippin.runtime.folder import open_folder
from pippin.runtime.ort_engine import OrtEngine
from support.exported import PlainRun, difference, graph_path, random_ids, tiny_checkpoint

IDS = random_ids(120, seed=5)
FLASH = "ORT_GQA_DISABLE_FLASH_ATTENTION"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def folder(checkpoint, tmp_path_factory):
    return export_folder(checkpoint, tmp_path_factory.mktemp("folders") / "both", weights="q4")


def names(folder):
    return sorted(path.name for path in (folder / "onnx").iterdir())


def engine(folder, kv=None):
    return OrtEngine(open_folder(folder, kv=kv), threads=1)


def test_both_graphs_read_one_data_file_and_the_portable_one_is_named(folder):
    assert names(folder) == ["model_q4.onnx", "model_q4.onnx_data", "model_q4_kv8.onnx"]
    floats, codes = (open_folder(folder, "q4", kv) for kv in ("float", "int8"))
    assert floats.data == codes.data
    assert floats.graph == graph_path(folder)
    assert '"onnx/model_q4.onnx"' in (folder / "genai_config.json").read_text()
    readme = (folder / "README.md").read_text()
    assert "| `onnx/model_q4_kv8.onnx` |" in readme
    assert "1.27 or newer" in readme
    assert verify_folder(folder).ok
    assert {check.graph for check in verify_folder(folder).checks} == {
        "onnx/model_q4.onnx",
        "onnx/model_q4_kv8.onnx",
    }


@pytest.mark.parametrize(
    "options",
    [
        {"weights": "q4", "kv": "fp32"},
        {"weights": "q4", "kv": "int8"},
        {"weights": "fp32"},
        {"weights": "q4", "dialect": "standard"},
        {"weights": "q4", "target": "webgpu"},
        {"weights": "q4", "exact": True},
    ],
    ids=str,
)
def test_where_there_is_one_graph_only(options, checkpoint, tmp_path):
    out = export_folder(checkpoint, tmp_path / "out", **options)
    assert len(names(out)) == 2
    assert "_kv8" not in (out / "README.md").read_text()


def test_the_engine_takes_the_small_cache_and_says_nearly_the_same(folder):
    floats, codes = engine(folder, "float"), engine(folder)
    assert 4 * codes.info.kv_bytes_per_token == floats.info.kv_bytes_per_token
    wanted = floats.open().verify(IDS)
    session = codes.open()
    steps = np.stack([session.step(token) for token in IDS])
    assert 0 < difference(steps, wanted) < 0.2
    assert difference(PlainRun(folder)(IDS)[0], wanted) < 1e-5


def test_a_step_a_row_of_several_and_one_of_a_batch_are_the_same_bits(folder):
    steps, rows = engine(folder).open(), engine(folder).open()
    one = np.stack([steps.step(token) for token in IDS[:70]])
    for count in (1, 2, 7, SHORT):
        rows.rollback(0)
        parts = [rows.verify(IDS[at : at + count]) for at in range(0, 70, count)]
        np.testing.assert_array_equal(np.concatenate(parts)[:70], one)


def test_a_batch_of_sequences_is_each_alone(folder):
    """Two of equal length, as GroupQueryAttention takes them: a prompt together, then steps."""
    graph = open_folder(folder, kv="int8").graph
    session = ort.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    pasts = [arg for arg in session.get_inputs() if arg.name.startswith("past_key_values.")]
    presents = [arg.name.replace("past_key_values", "present") for arg in pasts]

    def run(ids):
        batch, logits = len(ids), []
        caches = {a.name: np.zeros((batch, a.shape[1], 0, a.shape[3]), np.int8) for a in pasts}
        for at, end in ((0, SHORT), (SHORT, SHORT + 1), (SHORT + 1, SHORT + 2)):
            feeds = {"input_ids": ids[:, at:end], "attention_mask": np.ones((batch, end), np.int64)}
            row, *values = session.run(["logits", *presents], feeds | caches)
            caches = dict(zip(caches, values, strict=True))
            logits.append(row)
        return np.concatenate(logits, axis=1)

    ids = np.array(IDS[: 2 * (SHORT + 2)]).reshape(2, -1)
    alone = np.concatenate([run(ids[:1]), run(ids[1:])])
    np.testing.assert_array_equal(run(ids), alone)


def test_a_cache_of_one_graph_is_refused_by_the_other(folder, tmp_path):
    session = engine(folder).open()
    session.prefill(IDS[:20])
    session.save(tmp_path / "saved.kv", IDS[:20])
    with pytest.raises(InputError, match="another model"):
        engine(folder, "float").restore(tmp_path / "saved.kv")


def test_an_older_onnxruntime_takes_the_portable_graph(folder, monkeypatch):
    monkeypatch.setattr(ort, "__version__", "1.26.3")
    assert open_folder(folder).graph == graph_path(folder)
    assert OrtEngine.from_folder(folder, weights="q4", threads=1).open().step(1).size == 97
    with pytest.raises(InputError, match=r"_kv8\.onnx needs onnxruntime 1\.27 or newer, and this"):
        engine(folder, "int8")
    monkeypatch.setattr(ort, "__version__", "1.27.0")
    assert open_folder(folder).graph != graph_path(folder)


def test_there_is_no_such_cache(folder, checkpoint, tmp_path):
    with pytest.raises(InputError, match="no KV cache 'fp32'; choose float or int8"):
        open_folder(folder, kv="fp32")
    floats = export_folder(checkpoint, tmp_path / "out", weights="q4", kv="fp32")
    with pytest.raises(InputError, match=r"holds no model_q4_kv8\.onnx"):
        open_folder(floats, kv="int8")


def test_a_failure_at_the_second_graph_leaves_nothing(checkpoint, tmp_path, monkeypatch):
    def failing(*_):
        raise InputError("the graph cannot be loaded")

    monkeypatch.setattr(graph, "quantize_cache", failing)
    with pytest.raises(InputError, match="cannot be loaded"):
        export_folder(checkpoint, tmp_path / "out", weights="q4")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("before", [None, "0"])
def test_flash_attention_is_off_where_the_cache_is_int8(before, folder, monkeypatch):
    """Only while the session is made, and never against the user's own word."""
    monkeypatch.delenv(FLASH, raising=False)
    if before is not None:
        monkeypatch.setenv(FLASH, before)
    seen, real = [], ort_graph.open_session

    def watched(*arguments, **options):
        seen.append(os.environ.get(FLASH))
        return real(*arguments, **options)

    monkeypatch.setattr(ort_graph, "open_session", watched)
    engine(folder, "int8")
    engine(folder, "float")
    assert seen == (["1", None] if before is None else [before, before])
    assert os.environ.get(FLASH) == before
