"""Tiny BERTs, DistilBERTs and MPNets against transformers, on MLX, numpy and onnxruntime."""

import mlx.core as mx
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from pippin.export.encoder_folder import export_encoder
from pippin.export.quantize import quantize_decoder
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.encoder import Encoder
from pippin.mlx_model.encoder_load import load_encoder
from pippin.mlx_model.mlx_stack_ops import MlxStackOps, Padding
from pippin.mlx_model.numpy_stack_ops import NumpyPadding, NumpyStackOps
from support.encoders import ENCODERS, error, make_stack

TOLERANCE = 1e-5
KINDS = [pytest.param(name, id=name) for name in ENCODERS]


def on_mlx(encoder: Encoder, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    caches = [Padding(mx.array(mask))] * encoder.config.stack.layers
    tokens = mx.array(ids)
    return np.array(encoder(MlxStackOps(), tokens, mx.zeros_like(tokens), caches))


def on_numpy(encoder: Encoder, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    caches = [NumpyPadding(mask)] * encoder.config.stack.layers
    return encoder(NumpyStackOps(), ids, np.zeros_like(ids), caches)


def open_graph(path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def on_onnx(session: ort.InferenceSession, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    feeds = {"input_ids": ids, "attention_mask": mask}
    if "token_type_ids" in {arg.name for arg in session.get_inputs()}:
        feeds["token_type_ids"] = np.zeros_like(ids)
    return session.run(["last_hidden_state"], feeds)[0]


def lengths(stack) -> tuple[int, ...]:
    """One token, some, the longest text."""
    limit = stack.reference.config.max_position_embeddings
    longest = limit - 2 if stack.reference.config.model_type == "mpnet" else limit
    return (1, 2, 7, longest - 1, longest)


@pytest.mark.parametrize("name", KINDS)
def test_hidden_states_are_those_of_transformers(name, encoder, tmp_path):
    stack = encoder(name)
    checkpoint = open_checkpoint(stack.path)
    ours = load_encoder(checkpoint, mx.float32)
    folder = export_encoder(checkpoint, tmp_path / "out")
    session = open_graph(folder / "onnx" / "model.onnx")
    for length in lengths(stack):
        ids = np.array([stack.ids(length)])
        mask = np.ones_like(ids)
        wanted = stack.hidden(ids, mask)
        assert error(on_mlx(ours, ids, mask), wanted) <= TOLERANCE
        assert error(on_numpy(ours, ids, mask), wanted) <= TOLERANCE
        assert error(on_onnx(session, ids, mask), wanted) <= TOLERANCE


@pytest.mark.parametrize("name", KINDS)
def test_a_padded_batch_says_what_each_text_says_alone(name, encoder, tmp_path):
    stack = encoder(name)
    checkpoint = open_checkpoint(stack.path)
    ours = load_encoder(checkpoint, mx.float32)
    session = open_graph(export_encoder(checkpoint, tmp_path / "out") / "onnx" / "model.onnx")
    texts = [stack.ids(length, seed=length) for length in (3, 12, 1, 30)]
    ids = np.zeros((len(texts), 30), np.int64)
    mask = np.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, : len(text)], mask[row, : len(text)] = text, 1
    answers = {
        "mlx": on_mlx(ours, ids, mask),
        "numpy": on_numpy(ours, ids, mask),
        "onnx": on_onnx(session, ids, mask),
    }
    for row, text in enumerate(texts):
        alone = np.array([text])
        wanted = stack.hidden(alone, np.ones_like(alone))[0]
        for backend, answer in answers.items():
            assert error(answer[row, : len(text)], wanted) <= TOLERANCE, backend


@pytest.mark.parametrize("name", KINDS)
def test_padding_may_stand_on_the_left_of_a_graph(name, encoder, tmp_path):
    stack = encoder(name)
    folder = export_encoder(open_checkpoint(stack.path), tmp_path / "out")
    session = open_graph(folder / "onnx" / "model.onnx")
    alone = np.array([stack.ids(9)])
    ids, mask = (np.pad(x, ((0, 0), (4, 0))) for x in (alone, np.ones_like(alone)))
    wanted = stack.hidden(alone, np.ones_like(alone))
    assert error(on_onnx(session, ids, mask)[:, 4:], wanted) <= TOLERANCE


def test_token_types_reach_the_sum(encoder, tmp_path):
    import torch

    stack = encoder("bert")
    checkpoint = open_checkpoint(stack.path)
    ids = np.array([stack.ids(10)])
    types = np.array([[0] * 4 + [1] * 6])
    with torch.inference_mode():
        out = stack.reference(torch.tensor(ids), token_type_ids=torch.tensor(types))
    wanted = out.last_hidden_state.numpy()
    ours = load_encoder(checkpoint, mx.float32)
    caches = [Padding(mx.ones(ids.shape))] * ours.config.stack.layers
    assert error(ours(MlxStackOps(), mx.array(ids), mx.array(types), caches), wanted) <= TOLERANCE
    session = open_graph(export_encoder(checkpoint, tmp_path / "out") / "onnx" / "model.onnx")
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": types}
    assert error(session.run(None, feeds)[0], wanted) <= TOLERANCE


@pytest.mark.parametrize("weights", ["int8", "q4"])
@pytest.mark.parametrize("name", ["bert", "distilbert", "mpnet"])
def test_quantized_graphs_compute_what_mlx_computes(name, weights, tmp_path):
    kind, config = ENCODERS[name]
    hidden, width, heads = ("hidden_size", "intermediate_size", "num_attention_heads")
    if name == "distilbert":
        hidden, width, heads = ("dim", "hidden_dim", "n_heads")
    # widths that groups of columns divide, so that every layer is quantized
    stack = make_stack(tmp_path / "wide", kind, config | {hidden: 64, width: 96, heads: 4})
    checkpoint = open_checkpoint(stack.path)
    ours = load_encoder(checkpoint, mx.float32)
    quantize_decoder(ours, weights)
    ids = np.array([stack.ids(20)])
    mask = np.ones_like(ids)
    folder = export_encoder(checkpoint, tmp_path / "out", weights=weights, exact=True)
    session = open_graph(folder / "onnx" / f"model_{weights}.onnx")
    assert error(on_onnx(session, ids, mask), on_mlx(ours, ids, mask)) <= 1e-4
    graph = onnx.load(folder / "onnx" / f"model_{weights}.onnx", load_external_data=False).graph
    products = [node for node in graph.node if node.op_type == "MatMulNBits"]
    assert len(products) == 6 * ours.config.stack.layers


@pytest.mark.parametrize("name", ["bert", "distilbert", "mpnet"])
def test_half_precision_is_near(name, encoder, tmp_path):
    stack = encoder(name)
    folder = export_encoder(open_checkpoint(stack.path), tmp_path / "out", weights="fp16")
    ids = np.array([stack.ids(20)])
    mask = np.ones_like(ids)
    found = on_onnx(open_graph(folder / "onnx" / "model_fp16.onnx"), ids, mask)
    assert found.dtype == np.float32
    assert error(found, stack.hidden(ids, mask)) <= 1e-2
