"""A batch of prompts of different lengths says what each says alone: greedy and sampled."""

import numpy as np
import onnxruntime as ort
import pytest

from pippin.export.folder import export_folder
from pippin.export.settings import PADDED_ON_THE_LEFT
from pippin.export.verify import verify_folder
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.runtime.ort_engine import OrtEngine
from pippin.runtime.sampling import Sampler, SamplingParams
from support.exported import (
    CONTEXT,
    SIZES,
    PlainRun,
    graph_path,
    random_ids,
    read_model,
    tiny_checkpoint,
)
from support.tiny import make_tiny

LENGTHS = range(1, 41)
STEPS = 12
PROMPTS = [random_ids(length, seed=length) for length in LENGTHS]
SAMPLING = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=1.0, top_p=0.9, seed=11),
}
KINDS = {
    "gqa": {"weights": "fp32"},
    "gqa-q4": {"weights": "q4", "kv": "fp32"},
    "standard": {"weights": "fp32", "dialect": "standard"},
}


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory):
    place = tmp_path_factory.mktemp("folder")
    return export_folder(
        tiny_checkpoint(place / "tiny"), place / "out", context=CONTEXT, **KINDS[request.param]
    )


def samplers(params, prompts=PROMPTS):
    return [Sampler(params, 97, np, prompt, n) for n, prompt in enumerate(prompts)]


def alone(folder, params):
    """Through the engine, which never pads."""
    engine = OrtEngine.from_folder(folder, threads=1)
    replies = []
    for prompt, choose in zip(PROMPTS, samplers(params), strict=True):
        session = engine.open()
        logits, reply = session.prefill(prompt), []
        for step in range(STEPS):
            reply.append(int(choose(logits, step)))
            logits = session.step(reply[-1])
        replies.append(reply)
    return replies


def together(folder, params, in_place):
    """In one batch, padded on the right; `in_place`: new tokens take the place of padding."""
    run, choose = PlainRun(folder, batch=len(PROMPTS)), samplers(params)
    lengths = np.array(LENGTHS)
    longest = lengths.max()
    ids = np.array([prompt + [0] * (longest - len(prompt)) for prompt in PROMPTS])
    mask = (np.arange(longest) < lengths[:, None]).astype(np.int64)
    logits = run(ids, mask)[np.arange(len(PROMPTS)), lengths - 1]
    replies = []
    for step in range(STEPS):
        tokens = [int(c(row.copy(), step)) for c, row in zip(choose, logits, strict=True)]
        replies.append(tokens)
        total = longest + step + 1
        if in_place:
            mask = (np.arange(total) < lengths[:, None] + step + 1).astype(np.int64)
        else:
            mask = np.concatenate([mask, np.ones((len(PROMPTS), 1), np.int64)], axis=1)
        logits = run(np.array(tokens)[:, None], mask, 1)[:, 0]
    return np.array(replies).T.tolist()


@pytest.mark.parametrize("kind", SAMPLING)
def test_a_right_padded_batch_says_what_each_says_alone(folder, kind):
    in_place = "GroupQueryAttention" in (folder / "README.md").read_text()
    wanted = alone(folder, SAMPLING[kind])
    assert together(folder, SAMPLING[kind], in_place) == wanted
    assert len({tuple(reply) for reply in wanted}) > 30  # they do differ


@pytest.mark.parametrize("kind", ["Llama", "Mpt"])
@pytest.mark.parametrize("row", [0, 1])
def test_padding_on_the_left_is_refused_by_name(kind, row, tmp_path):
    """By the graph itself, whoever runs it, in any row and at any step."""
    sizes = SIZES if kind == "Llama" else {"d_model": 96, "n_heads": 6, "max_seq_len": 64}
    checkpoint = open_checkpoint(make_tiny(tmp_path / "tiny", kind, **sizes).path)
    run = PlainRun(export_folder(checkpoint, tmp_path / "out", weights="fp32"), batch=2)
    mask = np.ones((2, 4), np.int64)
    mask[row, :2] = 0
    with pytest.raises(
        ort.capi.onnxruntime_pybind11_state.InvalidArgument, match=PADDED_ON_THE_LEFT
    ):
        run(np.ones((2, 4)), mask)
    run.reset(2)
    run(np.ones((2, 4)), np.ones((2, 4), np.int64))
    with pytest.raises(Exception, match=PADDED_ON_THE_LEFT):
        run(np.ones((2, 1)), np.concatenate([mask, np.ones((2, 1), np.int64)], axis=1))


def test_verify_tells_of_padding(tmp_path):
    checkpoint = tiny_checkpoint(tmp_path / "tiny")

    def said(folder):
        return next(c.detail for c in verify_folder(folder).checks if c.name == "inputs")

    ours = export_folder(checkpoint, tmp_path / "gqa", weights="fp32")
    assert "padding on the left is refused" in said(ours)
    model = read_model(ours)
    for node in model.graph.node:
        node.name = "other"  # as in a stranger's graph
    graph_path(ours).write_bytes(model.SerializeToString())
    assert "padding on the left is taken wrongly" in said(ours)
    standard = export_folder(checkpoint, tmp_path / "out", weights="fp32", dialect="standard")
    assert "padding" not in said(standard)
