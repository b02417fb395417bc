"""`pippin quantize` and `pippin eval perplexity` as their users see them."""

import json
import math

import pytest

from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from support.adapters import make_peft
from support.command_line import make_chat_model, one_line, run_pippin
from support.exported import difference, mlx_logits, random_ids
from support.quantized import SIZES, load, mlx_lm_logits, tensors


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An empty model store."""
    monkeypatch.setenv("PIPPIN_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_chat_model(tmp_path_factory.mktemp("models") / "tiny-chat", **SIZES)


def test_a_folder_named_after_the_model(model, tmp_path):
    run = run_pippin("quantize", model, "--per-layer", "*v_proj=8", cwd=tmp_path)
    assert (run.code, run.out) == (0, "tiny-chat-4bit\n")
    lines = run.err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(
        "23 of 23 layers in 4-bit affine weights in groups of 64 (20) and 8-bit affine weights in "
        "groups of 64 (3); "
    )
    decoder = load(tmp_path / "tiny-chat-4bit")
    assert decoder.model.layers[2].self_attn.v_proj.bits == 8
    for options, name in (
        (["--mode", "nvfp4"], "tiny-chat-nvfp4"),
        (["--bits", "3", "--group", "32"], "tiny-chat-3bit"),
        (["--recipe", "mixed_4_6"], "tiny-chat-mixed_4_6"),
    ):
        assert run_pippin("quantize", model, *options, cwd=tmp_path).out == f"{name}\n"


def test_json(model, tmp_path):
    out = tmp_path / "out"
    run = run_pippin("quantize", model, "-o", out, "--bits", "8", "--eval", "--json")
    document = json.loads(run.out)
    size = sum(array.nbytes for array in tensors(out).values())
    assert document["path"] == str(out)
    assert document["default"] == {"bits": 8, "group_size": 64, "mode": "affine"}
    assert document["layers"]["lm_head"] == document["default"]
    assert (document["bytes"], document["too_narrow"]) == (size, {})
    assert document["bits_per_weight"] == pytest.approx(8 * size / document["parameters"])
    before, after = (document["perplexity"][when] for when in ("before", "after"))
    assert before["text"] == after["text"]
    assert (before["tokens"], before["scored_tokens"]) == (512, 511)
    assert 0 < abs(math.log(after["perplexity"] / before["perplexity"])) < 0.1
    measured = run_pippin(
        "eval", "perplexity", out, "--backend", "mlx", "--max-tokens", "512", "--json"
    )
    assert json.loads(measured.out)["perplexity"] == pytest.approx(after["perplexity"])


def test_narrow_layers_are_named(model, tmp_path):
    run = run_pippin("quantize", model, "-o", tmp_path / "out", "--mode", "mxfp4", "--eval")
    assert [line.partition(":")[0] for line in run.err.splitlines()[1:]] == [
        "perplexity before",
        "perplexity after",
    ]
    odd = make_chat_model(tmp_path / "odd", **SIZES | {"intermediate_size": 80})
    run = run_pippin("quantize", odd, "-o", tmp_path / "odd-out", "--group", "32")
    names = ", ".join(f"model.layers.{n}.mlp.down_proj" for n in range(3))
    expected = f"in floating point, since their rows are no multiple of the group: {names}"
    assert run.err.splitlines()[1] == expected


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--bits", "7"], "'7' is not one of '2', '3', '4', '5', '6', '8'"),
        (["--mode", "mxfp4", "--bits", "8"], "mxfp4 has 4 bits in groups of 32"),
        (["--recipe", "mixed_2_6", "--bits", "2"], "leave out 2 bits"),
        (["--per-layer", "x=4"], "no layer matches 'x'"),
        (["-o", "."], "exists and no quantization wrote it"),
    ],
)
def test_refusals_are_one_line(options, said, model, tmp_path):
    (tmp_path / "file").touch()
    run = run_pippin("quantize", model, *options, cwd=tmp_path)
    assert run.code == 2
    assert said in one_line(run)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_adapter_is_fused_first(model, tmp_path):
    """As if its fused checkpoint had been quantized: mlx-lm and the adapter's writer agree."""
    adapter = make_peft(tmp_path / "adapter", model)
    options = ("--adapter", adapter.path, "--bits", "8", "--group", "32")
    run = run_pippin("quantize", model, "-o", tmp_path / "out", *options)
    assert run.code == 0, run.err
    ids = random_ids(24)
    ours = mlx_logits(load(tmp_path / "out"), ids)
    assert difference(ours, adapter.logits(ids)) < 0.1
    assert difference(mlx_logits(load(model), ids), adapter.logits(ids)) > 0.2
    assert difference(ours, mlx_lm_logits(tmp_path / "out", ids)) < 1e-4


def test_both_backends_measure_alike(model, tmp_path):
    text = tmp_path / "text"
    text.write_text("Pippin reads what it is given, one byte a token. " * 40)
    out = run_pippin("quantize", model, "-o", tmp_path / "q").out.strip()
    documents = {}
    for backend in ("mlx", "onnx"):
        options = ("--backend", backend, "--context", "100", "--stride", "50", "--json")
        run = run_pippin("eval", "perplexity", out, text, *options)
        documents[backend] = json.loads(run.out)
    mlx, onnx = documents["mlx"], documents["onnx"]
    assert (mlx.pop("backend"), onnx.pop("backend")) == ("mlx", "onnx")
    assert onnx["perplexity"] == pytest.approx(mlx["perplexity"], rel=5e-3)
    assert mlx["tokens"] == mlx["bytes"] == len(text.read_text())
    assert mlx["scored_tokens"] == mlx["tokens"] - 1
    assert mlx["bits_per_byte"] == pytest.approx(math.log2(mlx["perplexity"]))
    assert mlx["text"]["source"] == str(text)


def test_a_text_on_stdin(model):
    options = ("--backend", "mlx", "--context", "64")
    run = run_pippin("eval", "perplexity", model, "-", *options, stdin="Füße. ".encode() * 30)
    rows = dict(line.rsplit(maxsplit=1) for line in run.out.splitlines())
    assert rows["tokens"] == str(len("Füße. ".encode() * 30))
    assert rows["context"] == rows["stride"] == "64"
    assert float(rows["perplexity"].replace(",", "")) > 1
    assert run.err.startswith("mlx on stdin (sha256 ")


def test_the_built_in_text_needs_no_file(model):
    from pippin.apps.perplexity import built_in_text

    options = ("--backend", "mlx", "--max-tokens", "600", "--json")
    document = json.loads(run_pippin("eval", "perplexity", model, *options).out)
    text = built_in_text()
    assert document["text"] == {"source": text.source, "sha256": text.sha256}
    assert (document["tokens"], document["scored_tokens"]) == (600, 598)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{model}", "{model}/absent"], "absent cannot be read: No such file"),
        (["{model}", "--context", "9999"], "context of 9999 tokens was asked for"),
        (["{model}", "--stride", "1000"], "stride of 1000"),
        (["{model}", "-"], "the text is empty"),
        (["nothing-of-that-name"], "there is no model"),
    ],
)
def test_eval_refuses_in_one_line(arguments, said, model):
    filled = [argument.format(model=model) for argument in arguments]
    run = run_pippin("eval", "perplexity", *filled, "--backend", "mlx", "--max-tokens", "50")
    assert run.code == 2
    assert said in one_line(run)


def test_a_quantized_folder_is_a_checkpoint_like_any_other(model, tmp_path):
    out = run_pippin("quantize", model, "-o", tmp_path / "q", "--bits", "6").out.strip()
    assert open_checkpoint(tmp_path / "q").config["quantization"]["bits"] == 6
    reply = run_pippin("generate", out, "hi", "--backend", "mlx", "--max-tokens", "4")
    assert reply.code == 0
    inspected = run_pippin("inspect", out, "--json")
    assert json.loads(inspected.out)["weight_bytes"] == sum(
        array.nbytes for array in tensors(tmp_path / "q").values()
    )
