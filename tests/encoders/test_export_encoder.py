"""The folder of an exported encoder: what sentence-transformers and others look for in it."""

import json

import onnx
import pytest
import transformers

from pippin.export.encoder_folder import export_encoder
from pippin.export.verify import verify_folder
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.runtime.errors import InputError
from pippin.runtime.recipe import Recipe, read_recipe
from support.encoders import write_word_tokenizer


@pytest.fixture
def checkpoint(encoder, copied):
    stack = encoder("bert")
    folder = copied(stack)
    write_word_tokenizer(folder, stack.vocab_size)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    for name, content in Recipe(("cls",), normalize=True, max_length=20).files(48, 40).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return open_checkpoint(folder)


def graph_of(folder, name="model.onnx"):
    return onnx.load(folder / "onnx" / name, load_external_data=False)


def dims(value):
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


def test_the_layout(checkpoint, tmp_path):
    folder = export_encoder(checkpoint, tmp_path / "out")
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "modules.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
        "1_Pooling/config.json",
        "README.md",
        "onnx/model.onnx",
        "onnx/model.onnx_data",
    }
    assert read_recipe(folder) == read_recipe(checkpoint.path)
    config = transformers.AutoConfig.from_pretrained(folder)
    assert (config.model_type, config.hidden_size) == ("bert", 48)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    assert tokenizer("w3 w4").input_ids == [1, 3, 4, 2]


def test_the_graph(checkpoint, encoder, tmp_path):
    model = graph_of(export_encoder(checkpoint, tmp_path / "out"))
    batch = ["batch_size", "sequence_length"]
    assert {value.name: dims(value) for value in model.graph.input} == {
        "input_ids": batch,
        "attention_mask": batch,
        "token_type_ids": batch,
    }
    (output,) = model.graph.output
    assert (output.name, dims(output)) == ("last_hidden_state", [*batch, 48])
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    assert opsets[""] <= 21
    other = export_encoder(open_checkpoint(encoder("distilbert").path), tmp_path / "other")
    assert {value.name for value in graph_of(other).graph.input} == {"input_ids", "attention_mask"}


def test_unknown_weights_are_refused(checkpoint, tmp_path):
    with pytest.raises(InputError, match="no weights 'q5'"):
        export_encoder(checkpoint, tmp_path / "out", weights="q5")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [({"dialect": "standard"}, "--dialect"), ({"context": 16}, "--context")],
    ids=["dialect", "context"],
)
def test_what_only_decoders_have_is_refused(options, named, checkpoint, tmp_path):
    with pytest.raises(InputError, match=named):
        export_encoder(checkpoint, tmp_path / "out", **options)


def test_an_export_is_replaced_only_when_asked(checkpoint, tmp_path):
    out = export_encoder(checkpoint, tmp_path / "out")
    before = (out / "onnx" / "model.onnx").read_bytes()
    with pytest.raises(InputError, match="exists"):
        export_encoder(checkpoint, out)
    export_encoder(checkpoint, out, overwrite=True)
    assert (out / "onnx" / "model.onnx").read_bytes() == before  # the same bytes each time


def test_a_model_without_what_it_needs_is_refused_before_anything_is_written(checkpoint, tmp_path):
    (checkpoint.path / "1_Pooling" / "config.json").unlink()
    with pytest.raises(InputError, match="1_Pooling"):
        export_encoder(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_verify_says_that_it_is_for_decoders(checkpoint, tmp_path):
    out = export_encoder(checkpoint, tmp_path / "out")
    with pytest.raises(InputError, match="encoder"):
        verify_folder(out)
