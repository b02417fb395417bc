"""Perplexity against the loss that transformers computes."""

import hashlib
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pippin.apps import perplexity
from pippin.apps.perplexity import Text, built_in_text, evaluate, log_softmax, read_text, score
from pippin.export.folder import export_folder
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.engine import MlxEngine
from pippin.runtime.errors import InputError, PippinError
from pippin.runtime.ort_engine import OrtEngine
from support.exported import random_ids
from support.quantized import load

IDS = random_ids(300)


@pytest.fixture(scope="module", params=["mlx", "onnx"])
def engine(request, tiny_factory, tmp_path_factory):
    path = tiny_factory().path
    if request.param == "mlx":
        return MlxEngine(load(path), "tiny", "0")
    out = tmp_path_factory.mktemp("onnx") / "tiny"
    return OrtEngine.from_folder(export_folder(open_checkpoint(path), out, weights="fp32"))


def losses(tiny, ids, labels):
    """transformers' own mean loss of a window whose labels of −100 do not count."""
    import torch

    with torch.inference_mode():
        return tiny.reference(torch.tensor([ids]), labels=torch.tensor([labels])).loss.item()


@pytest.mark.parametrize("context", [300, 128, 100, 37, 2])
def test_windows_side_by_side(context, engine, tiny_factory):
    """The mean over windows of transformers' loss, weighted by the tokens it counts."""
    nats = count = 0
    for start in range(0, len(IDS), context):
        window = IDS[start : start + context]
        if len(window) > 1:
            nats += losses(tiny_factory(), window, window) * (len(window) - 1)
            count += len(window) - 1
    done = score(engine, IDS, context=context)
    assert done.scored == count
    assert done.perplexity == pytest.approx(math.exp(nats / count), rel=1e-5)


@pytest.mark.parametrize(("context", "stride"), [(64, 16), (100, 99), (37, 1), (300, 7)])
def test_windows_that_overlap(context, stride, engine, tiny_factory):
    """Hugging Face's loop; each token but the first is scored once."""
    ids = IDS[:150]
    nats = end = 0
    for begin in range(0, len(ids), stride):
        before, end = end, min(begin + context, len(ids))
        window = ids[begin:end]
        new = end - before
        labels = [-100] * (len(window) - new) + window[len(window) - new :]
        nats += losses(tiny_factory(), window, labels) * (new if begin else new - 1)
        if end == len(ids):
            break
    done = score(engine, ids, context=context, stride=stride)
    assert done.scored == len(ids) - 1
    assert done.nats == pytest.approx(nats, rel=1e-5)


def test_a_prefix_begins_each_window(engine, tiny_factory):
    nats = 0
    for start in range(0, 90, 30):
        window = [1, *IDS[start : start + 30]]
        nats += losses(tiny_factory(), window, window) * 30
    done = score(engine, IDS[:90], context=31, prefix=[1])
    assert (done.scored, done.computed) == (90, 90)
    assert done.nats == pytest.approx(nats, rel=1e-5)


@given(st.integers(2, 60), st.integers(2, 30), st.integers(1, 30))
def test_each_token_is_scored_once(total, width, stride):
    windows = list(perplexity._windows(total, width, min(stride, width)))
    scored = [at for window in windows for at in range(window.first, window.end)]
    assert scored == sorted(set(scored))
    assert set(range(total)) - set(scored) <= {total - 1}  # a last one, alone in its window
    for window in windows:
        assert window.begin <= window.first < window.end <= window.begin + width


def test_log_softmax_is_scipy_s():
    import torch

    x = np.random.default_rng(0).standard_normal((4, 50)) * 100
    expected = torch.log_softmax(torch.tensor(x.astype(np.float32)).double(), -1).numpy()
    np.testing.assert_allclose(log_softmax(x.astype(np.float32)), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("ids", "options", "said"),
    [
        (IDS, {"context": 1}, "context of 1 tokens was asked for; .* takes 2 to 512"),
        (IDS, {"context": 513}, "context of 513 tokens"),
        (IDS, {"context": 20, "stride": 21}, "stride of 21 tokens .* takes 1–20"),
        (IDS, {"context": 20, "stride": 0}, "stride of 0"),
        (IDS[:1], {"context": 20}, "at least 2 tokens of text; found 1"),
    ],
)
def test_refusals(ids, options, said, engine):
    with pytest.raises(InputError, match=said):
        score(engine, ids, **options)


def test_logits_that_are_no_numbers(tiny_factory):
    decoder = load(tiny_factory().path)
    decoder.model.norm.weight = decoder.model.norm.weight * float("nan")
    with pytest.raises(PippinError, match="not finite"):
        score(MlxEngine(decoder, "tiny", "0"), IDS, context=64)


class LetterTokenizer:
    """Ids 3… are a, b, …; BOS is 1, EOS 2."""

    def __init__(self, bos):
        self.bos = bos

    def encode(self, text, *, add_special_tokens=True):
        ids = [3 + ord(letter) - ord("a") for letter in text]
        return [1, *ids, 2] if self.bos and add_special_tokens else ids

    def decode(self, ids):
        return "".join(chr(ord("a") + token - 3) for token in ids)


@pytest.mark.parametrize("bos", [False, True])
def test_a_report_on_a_text(bos, engine):
    text = Text("abcdefghij" * 7, "letters")
    tokenizer = LetterTokenizer(bos)
    report = evaluate(SimpleNamespace(engine=engine, tokenizer=tokenizer), text, max_tokens=50)
    ids = tokenizer.encode(text.content[:50], add_special_tokens=False)
    expected = score(engine, ids, context=512, prefix=[1] if bos else [])
    assert report.score.nats == expected.nats
    assert report.score.scored == (50 if bos else 49)
    assert (report.tokens, report.bytes, report.context) == (50, 50, 512)
    # One byte a token: bits per byte is bits per token.
    assert report.bits_per_byte == pytest.approx(math.log2(report.score.perplexity))


def test_the_built_in_text_is_python_s_own():
    from pydoc_data import topics

    text = built_in_text()
    assert len(text.content) > 300_000
    assert topics.topics["assert"].strip() in text.content
    assert text.sha256 == hashlib.sha256(text.content.encode()).hexdigest()


@pytest.mark.parametrize(
    ("content", "named"),
    [(b"\xff\xfe", "is no UTF-8 text"), (None, "cannot be read: No such file")],
)
def test_a_file_that_is_no_text(content, named, tmp_path):
    if content:
        (tmp_path / "text").write_bytes(content)
    with pytest.raises(InputError, match=named):
        read_text(tmp_path / "text")
