"""`pippin embed`, and what other commands say of an encoder."""

import json

import numpy as np
import pytest

from pippin.apps.embedders import load_embedder
from pippin.runtime.errors import InputError
from pippin.runtime.recipe import Recipe
from support.command_line import one_line, run_pippin
from support.encoders import make_stack, write_word_tokenizer


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPPIN_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def model(encoder, tmp_path_factory):
    """A tiny encoder with a tokenizer; tests must not change it."""
    folder = tmp_path_factory.mktemp("model") / "tiny-bert"
    folder.mkdir()
    stack = encoder("bert")
    for file in stack.path.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    write_word_tokenizer(folder, stack.vocab_size)
    return folder


def test_one_vector_a_line_on_both_backends(model):
    texts = ["w3 w4 w5", "w60"]
    wanted = load_embedder(str(model), "mlx").embed(texts)
    for backend in ("mlx", "onnx"):
        run = run_pippin("embed", model, *texts, "--backend", backend)
        assert (run.code, run.err) == (0, "")
        lines = [[float(value) for value in line.split()] for line in run.out.splitlines()]
        np.testing.assert_allclose(lines, wanted, atol=1e-5)


def test_json_and_stdin(model):
    run = run_pippin("embed", model, "-", "--json", stdin=b"w3 w4\nw60\n")
    document = json.loads(run.out)
    assert document["texts"] == ["w3 w4", "w60"]
    assert document["backend"] == "onnx"
    assert np.array(document["vectors"]).shape == (2, 48)
    piped = run_pippin("embed", model, "--json", stdin=b"w3 w4\nw60")
    assert json.loads(piped.out) == document


def test_similarity(model):
    texts = ["w3 w4", "w3 w4", "w60"]
    run = run_pippin("embed", model, *texts, "--similarity", "--json")
    matrix = np.array(json.loads(run.out)["similarity"])
    np.testing.assert_allclose(np.diag(matrix), 1, atol=1e-6)
    np.testing.assert_allclose(matrix[0, 1], 1, atol=1e-6)
    assert abs(matrix[0, 2]) < 0.99
    table = run_pippin("embed", model, *texts, "--similarity").out.splitlines()
    assert len(table) == 4
    assert table[1].split()[-2:] == ["w3", "w4"]


def test_another_pooling_is_exported_anew(model, tmp_path):
    folder = tmp_path / "changed"
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    before = load_embedder(str(folder), "onnx").embed(["w3 w4"])
    for name, content in Recipe(("cls",)).files(48, 40).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    after = load_embedder(str(folder), "onnx").embed(["w3 w4"])
    assert np.abs(after - before).max() > 0.1
    np.testing.assert_allclose(after, load_embedder(str(folder), "mlx").embed(["w3 w4"]), atol=1e-5)


def test_an_exported_folder_runs(model, tmp_path):
    out = tmp_path / "out"
    export = run_pippin("export", model, "-o", out, "--json")
    assert json.loads(export.out)["weights"] == ["fp32"]
    said = run_pippin("embed", out, "w3 w4")
    assert said.out == run_pippin("embed", model, "w3 w4", "--backend", "onnx").out
    refused = run_pippin("embed", out, "w3", "--backend", "mlx")
    assert "exported folder" in one_line(refused)
    assert refused.code == 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--weights", "q4", "--backend", "mlx"), "--weights"),
        (("--threads", "2", "--backend", "mlx"), "--threads"),
    ],
    ids=["weights", "threads"],
)
def test_options_of_the_other_backend_are_refused(arguments, named, model):
    run = run_pippin("embed", model, "w3", *arguments)
    assert named in one_line(run)
    assert run.code == 2


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_text_is_not_asked_of_an_encoder(command, model, tmp_path):
    for backend in ("mlx", "onnx"):
        run = run_pippin(command, model, "--backend", backend, stdin=b"hi")
        assert "pippin embed" in one_line(run)
        assert run.code == 2
    out = tmp_path / "out"
    assert run_pippin("export", model, "-o", out).code == 0
    assert "pippin embed" in one_line(run_pippin(command, out, stdin=b"hi"))


def test_no_text(model):
    run = run_pippin("embed", model, stdin=b"")
    assert "empty" in one_line(run)
    assert run.code == 2


def test_vectors_are_not_asked_of_a_writer(tmp_path):
    from support.encoders import SEQ2SEQ
    from support.tiny import make_tiny

    kind, config = SEQ2SEQ["t5"]
    t5 = make_stack(tmp_path / "t5", kind, config)
    for backend in ("mlx", "onnx"):
        with pytest.raises(InputError, match="pippin generate"):
            load_embedder(str(t5.path), backend)
    llama = make_tiny(tmp_path / "llama")
    with pytest.raises(InputError, match="'llama', which is no encoder"):
        load_embedder(str(llama.path))
