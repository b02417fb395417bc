"""The folder of an exported encoder-decoder: what optimum and transformers.js look for in it."""

import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
import transformers

from pippin.export.seq2seq_folder import export_seq2seq
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.runtime.errors import InputError
from pippin.runtime.ort_seq2seq import OrtSeq2SeqEngine
from support.encoders import error


def open_graph(path):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def names(values):
    return [value.name for value in values]


@pytest.mark.parametrize("name", ["t5", "marian"])
def test_the_layout(name, writer, tmp_path):
    stack = writer(name)
    out = export_seq2seq(open_checkpoint(stack.path), tmp_path / "out", weights="fp32")
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    graphs = {f"onnx/{stem}.onnx" for stem in ("encoder_model", "decoder_model_merged")}
    data = {f"{graph}_data" for graph in graphs}
    assert files == {"README.md", "config.json", "generation_config.json", *graphs, *data}
    start = transformers.GenerationConfig.from_pretrained(out).decoder_start_token_id
    assert start == stack.reference.config.decoder_start_token_id
    assert transformers.AutoConfig.from_pretrained(out).model_type == name
    counts = json.loads((out / "config.json").read_text())["transformers.js_config"]
    assert counts["use_external_data_format"] == {
        "encoder_model.onnx": 1,
        "decoder_model_merged.onnx": 1,
    }


def test_tensors_are_in_optimums_order(writer, tmp_path):
    out = export_seq2seq(open_checkpoint(writer("t5").path), tmp_path / "out", weights="fp32")
    graph = onnx.load(out / "onnx" / "decoder_model_merged.onnx", load_external_data=False).graph
    caches = [
        f"{index}.{side}.{part}"
        for index in range(3)
        for side in ("decoder", "encoder")
        for part in ("key", "value")
    ]
    assert names(graph.input) == [
        "encoder_attention_mask",
        "input_ids",
        "encoder_hidden_states",
        *(f"past_key_values.{cache}" for cache in caches),
        "use_cache_branch",
    ]
    assert names(graph.output) == ["logits", *(f"present.{cache}" for cache in caches)]
    encoder = onnx.load(out / "onnx" / "encoder_model.onnx", load_external_data=False).graph
    assert names(encoder.input) == ["input_ids", "attention_mask"]
    assert names(encoder.output) == ["last_hidden_state"]


@pytest.mark.parametrize("name", ["t5", "t5-v1.1", "marian"])
def test_a_padded_batch_is_generated_from_as_transformers_does(name, writer, tmp_path):
    """With nothing but onnxruntime: two prompts at once, each present handed back as past."""
    stack = writer(name)
    out = export_seq2seq(open_checkpoint(stack.path), tmp_path / "out", weights="fp32")
    encoder, decoder = (
        open_graph(out / "onnx" / f"{stem}.onnx")
        for stem in ("encoder_model", "decoder_model_merged")
    )
    ids = np.array([stack.ids(11), stack.ids(11, seed=1)])
    mask = np.ones_like(ids)
    mask[1, 6:] = 0
    (memory,) = encoder.run(None, {"input_ids": ids, "attention_mask": mask})
    pasts = {
        arg.name: np.zeros((2, arg.shape[1], 0, arg.shape[3]), np.float32)
        for arg in decoder.get_inputs()
        if arg.name.startswith("past")
    }
    start = stack.reference.config.decoder_start_token_id
    reply = np.full((2, 1), start)
    rows = []
    for step in range(8):
        feeds = {
            "input_ids": reply[:, -1:],
            "encoder_attention_mask": mask,
            "encoder_hidden_states": memory,
            "use_cache_branch": np.array([step > 0]),
        }
        logits, *presents = decoder.run(None, feeds | pasts)
        pasts = dict(zip(pasts, presents, strict=True))
        rows.append(logits[:, -1])
        reply = np.concatenate([reply, logits[:, -1:].argmax(-1)], axis=1)
    with torch.inference_mode():
        wanted = stack.reference(
            input_ids=torch.tensor(ids),
            attention_mask=torch.tensor(mask),
            decoder_input_ids=torch.tensor(reply[:, :-1]),
        ).logits.numpy()
    assert error(np.stack(rows, axis=1), wanted) <= 1e-5


def test_half_precision(writer, tmp_path):
    stack = writer("marian")
    out = export_seq2seq(open_checkpoint(stack.path), tmp_path / "half", weights="fp16")
    session = OrtSeq2SeqEngine.from_folder(out, threads=1).open()
    prompt, reply = stack.ids(10), stack.ids(6, seed=1)
    found = [session.prefill(prompt), *(session.step(token) for token in reply)]
    assert error(np.stack(found), stack.logits(prompt, reply)) <= 1e-2
    with pytest.raises(InputError, match="float16's range"):
        export_seq2seq(open_checkpoint(writer("t5").path), tmp_path / "t5", weights="fp16")
    assert not (tmp_path / "t5").exists()


def test_words_of_several_tokens_are_refused(writer, tmp_path):
    stack = writer("marian")
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in stack.path.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "generation_config.json").write_text(json.dumps({"bad_words_ids": [[3, 4]]}))
    with pytest.raises(InputError, match="bad_words_ids"):
        export_seq2seq(open_checkpoint(folder), tmp_path / "out")
