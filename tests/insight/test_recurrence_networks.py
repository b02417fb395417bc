"""The LSTM and the decoder of `--versus-rnn` against torch's and transformers', same weights."""

import gc

import mlx.core as mx
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from mlx.utils import tree_flatten

from pippin.apps.insight.recurrence.gradient import gradient_norms
from pippin.apps.insight.recurrence.lstm_graph import write_lstm
from pippin.apps.insight.recurrence.measure import open_readers
from pippin.apps.insight.recurrence.networks import (
    CONTEXT,
    EMBEDDING,
    FEED_FORWARD,
    HEADS,
    HIDDEN,
    LSTM_LAYERS,
    VOCAB_SIZE,
    describe,
    make_decoder,
    make_lstm,
    random_ids,
)
from pippin.apps.insight.recurrence.report import FORGET_CHRONO, FORGET_ONE, FORGET_ZERO
from pippin.mlx_model.caches.full import KVCache
from pippin.mlx_model.mlx_ops import MlxOps

TOLERANCE = 1e-5  # × max|logit|
IDS = random_ids(7, 50)


@pytest.fixture(scope="module", autouse=True)
def on_one_core():
    torch.set_num_threads(1)
    with mx.stream(mx.cpu):
        yield


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    path = tmp_path_factory.mktemp("lstm") / "lstm.onnx"
    write_lstm(make_lstm(3), path)
    return path


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    return open_readers(tmp_path_factory.mktemp("graphs"), 1)


class TorchLstm(torch.nn.Module):
    """torch's own layers with the weights of ours; both have the gates i f g o."""

    def __init__(self, ours, dtype):
        super().__init__()
        weights = {name: np.array(array) for name, array in tree_flatten(ours.parameters())}
        self.embed = torch.nn.Embedding(VOCAB_SIZE, EMBEDDING)
        self.lstm = torch.nn.LSTM(EMBEDDING, HIDDEN, LSTM_LAYERS, batch_first=True)
        self.head = torch.nn.Linear(HIDDEN, VOCAB_SIZE, bias=False)
        self.to(dtype)
        pairs = {"embed.weight": "embed_tokens.weight", "head.weight": "lm_head.weight"}
        for layer in range(LSTM_LAYERS):
            pairs[f"lstm.weight_ih_l{layer}"] = f"layers.{layer}.Wx"
            pairs[f"lstm.weight_hh_l{layer}"] = f"layers.{layer}.Wh"
            pairs[f"lstm.bias_ih_l{layer}"] = f"layers.{layer}.bias"
        state = {name: torch.tensor(weights[source]) for name, source in pairs.items()}
        for layer in range(LSTM_LAYERS):
            state[f"lstm.bias_hh_l{layer}"] = torch.zeros(4 * HIDDEN)
        self.load_state_dict(state)

    def forward(self, x):
        return self.head(self.lstm(x)[0])


def torch_llama(ours):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=EMBEDDING,
        intermediate_size=FEED_FORWARD,
        num_hidden_layers=ours.config.layers,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        pad_token_id=None,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).eval()
    weights = tree_flatten(ours.parameters())
    model.load_state_dict({name: torch.tensor(np.array(array)) for name, array in weights})
    return model


def mlx_logits(decoder, ids):
    caches = [KVCache() for _ in range(decoder.config.layers)]
    return np.array(decoder(MlxOps(last=0), mx.array([ids]), caches)[0])


def assert_close(found, expected, tolerance=TOLERANCE):
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


def numpy_lstm(model, ids):
    """The equations, token by token, in float64; logits [L, V]."""

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    weights = {n: np.array(a, dtype=np.float64) for n, a in tree_flatten(model.parameters())}
    x = weights["embed_tokens.weight"][ids]
    for layer in range(LSTM_LAYERS):
        wx, wh, bias = (weights[f"layers.{layer}.{name}"] for name in ("Wx", "Wh", "bias"))
        hidden, cell, rows = np.zeros(HIDDEN), np.zeros(HIDDEN), []
        for row in x:
            i, f, g, o = np.split(wx @ row + wh @ hidden + bias, 4)
            cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
            hidden = sigmoid(o) * np.tanh(cell)
            rows.append(hidden)
        x = np.array(rows)
    return x @ weights["lm_head.weight"].T


@pytest.mark.parametrize("forget", [FORGET_ZERO, FORGET_ONE, FORGET_CHRONO])
def test_the_lstm_is_torchs(forget):
    ours = make_lstm(3, forget)
    theirs = TorchLstm(ours, torch.float32)
    logits, _ = ours(mx.array([IDS]))
    with torch.inference_mode():
        expected = theirs(theirs.embed(torch.tensor([IDS])))[0].numpy()
    assert_close(np.array(logits[0]), expected)


def test_the_lstm_is_what_its_equations_say_and_carries_its_state():
    ours = make_lstm(3)
    expected = numpy_lstm(ours, IDS)
    first, state = ours(mx.array([IDS[:20]]))
    second, _ = ours(mx.array([IDS[20:]]), state)
    assert_close(np.concatenate([np.array(first[0]), np.array(second[0])]), expected)


def test_the_lstms_graph_is_valid_onnx_and_says_what_numpy_says(graph):
    onnx.checker.check_model(str(graph), full_check=True)
    session = ort.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    feeds = {
        arg.name: np.zeros((1, 1, HIDDEN), np.float32)
        for arg in session.get_inputs()
        if arg.name.startswith("past")
    }
    assert len(feeds) == 2 * LSTM_LAYERS
    feeds |= {"input_ids": np.array([IDS]), "num_logits": np.zeros(1, np.int64)}
    (logits,) = session.run(["logits"], feeds)
    assert_close(logits[0], numpy_lstm(make_lstm(3), IDS))
    (last,) = session.run(["logits"], {k: v for k, v in feeds.items() if k != "num_logits"})
    np.testing.assert_array_equal(last[0], logits[0, -1:])


def test_the_decoder_is_a_llama():
    ours = make_decoder(3)
    with torch.inference_mode():
        expected = torch_llama(ours)(torch.tensor([IDS])).logits[0].numpy()
    assert_close(mlx_logits(ours, IDS), expected)


def test_both_are_of_one_size():
    lstm, decoder = describe(make_lstm(0)), describe(make_decoder(0))
    assert abs(lstm.parameters / decoder.parameters - 1) <= 0.01
    llama = torch_llama(make_decoder(0))
    assert decoder.parameters == sum(p.numel() for p in llama.parameters())
    theirs = TorchLstm(make_lstm(0), torch.float32)
    biases = LSTM_LAYERS * 4 * HIDDEN  # torch has each twice
    assert lstm.parameters == sum(p.numel() for p in theirs.parameters()) - biases


@pytest.mark.parametrize("index", [0, 1], ids=["lstm", "decoder"])
def test_graphs_say_the_same_in_one_call_in_chunks_and_token_by_token(readers, index):
    gc.collect()  # what they are bound to must be theirs
    reader = readers[index]
    expected = mlx_logits(make_decoder(0), IDS) if index else numpy_lstm(make_lstm(0), IDS)
    for chunks in ([50], [7, 1, 30, 12], [1] * 50, [50]):
        reader.start()
        end = 0
        for chunk in chunks:
            logits = reader.read(IDS[end : end + chunk])
            end += chunk
            assert_close(logits, expected[end - 1])


@pytest.mark.parametrize("distance", [1, 20, 100])
def test_the_lstms_gradient_is_torchs(distance):
    ours = make_lstm(5)
    theirs = TorchLstm(ours, torch.float64)
    *ids, target = random_ids(9, distance + 2)
    x = theirs.embed(torch.tensor([ids])).detach().requires_grad_()
    loss = torch.nn.functional.cross_entropy(theirs(x)[0, -1:], torch.tensor([target]))
    loss.backward()
    expected = x.grad[0].norm(dim=-1).numpy()
    # MLX's sigmoid and tanh are no better than float32's, whatever the type.
    np.testing.assert_allclose(gradient_norms(ours, ids, target), expected, rtol=1e-6)


@pytest.mark.parametrize("distance", [1, 20])
def test_the_decoders_gradient_is_transformers(distance):
    ours = make_decoder(5)
    theirs = torch_llama(ours)
    *ids, target = IDS[: distance + 2]
    x = theirs.get_input_embeddings()(torch.tensor([ids])).detach().requires_grad_()
    logits = theirs(inputs_embeds=x).logits[0, -1:]
    torch.nn.functional.cross_entropy(logits, torch.tensor([target])).backward()
    expected = x.grad[0].norm(dim=-1).numpy()
    np.testing.assert_allclose(gradient_norms(ours, ids, target), expected, rtol=1e-4)


def test_gradients_far_below_float32_are_still_seen():
    ids = random_ids(1, 301)
    first = gradient_norms(make_lstm(0, FORGET_ZERO), ids, 5)[0]
    assert 0 < first < np.finfo(np.float32).smallest_subnormal


def test_chrono_opens_the_forget_gates_and_closes_the_input_gates():
    for layer in make_lstm(0, FORGET_CHRONO).layers:
        i, f, _, _ = np.split(np.array(layer.bias), 4)
        np.testing.assert_array_equal(i, -f)
        memory = np.exp(f)  # uniform from 1 to 511 (arXiv:1804.11188, equation 16)
        assert 1 <= memory.min() < 50 < 450 < memory.max() <= 511.001
        assert abs(memory.mean() - 256) < 40
