"""Where a graph computes several tokens of a call as one by one, drafts change no token at all."""

import re
from itertools import pairwise

import numpy as np
import pytest

from pippin.export.folder import export_folder
from pippin.export.int8_attention import SHORT
from pippin.runtime.folder import open_folder
from pippin.runtime.generator import Generator
from pippin.runtime.ort_engine import OrtEngine
from pippin.runtime.sampling import SamplingParams
from pippin.runtime.speculation import LONGEST
from support.drafts import Scripted, plain, speculated
from support.exported import tiny_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module", params=["q4", "int8"])
def folder(request, checkpoint, tmp_path_factory):
    out = tmp_path_factory.mktemp("folders") / request.param
    return export_folder(checkpoint, out, weights=request.param)


@pytest.fixture(scope="module")
def quick(folder):
    return OrtEngine(open_folder(folder), threads=1)


def repeating(seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    part = rng.integers(0, 97, rng.integers(3, 40)).tolist()
    return [*part, *rng.integers(0, 97, seed % 5).tolist(), *part]


@pytest.mark.parametrize("temperature", [0.0, 0.4, 0.7])
def test_prompt_lookup_gives_the_same_tokens(quick, temperature):
    """Four tokens are much likelier than the rest, so that texts repeat themselves."""
    drafted = accepted = 0
    few = dict.fromkeys((5, 11, 40, 77), 30.0)
    for seed in range(12):
        params = SamplingParams(temperature=temperature, seed=seed, logit_bias=few)
        wanted, _ = plain(quick, repeating(seed), params, 90)
        tokens, _, done = speculated(quick, repeating(seed), params, 90, LONGEST)
        assert tokens == wanted
        drafted, accepted = drafted + done.drafted_tokens, accepted + done.accepted_tokens
    assert 0 < accepted <= drafted


@pytest.mark.parametrize("right", [0, 1, 3, 99])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_drafts_of_any_kind_leave_logits_and_cache_to_the_bit(quick, temperature, right):
    for seed in range(4):
        params = SamplingParams(temperature=temperature, seed=seed)
        wanted, one = plain(quick, repeating(seed), params, 60)
        drafter = Scripted(wanted, right, 97, LONGEST)
        tokens, other, _ = speculated(quick, repeating(seed), params, 60, drafter=drafter)
        assert tokens == wanted
        np.testing.assert_array_equal(one.step(5), other.step(5))


def test_a_call_never_has_more_rows_than_are_alike(quick):
    assert quick.info.rows_alike
    assert quick.open().verifiable(40, 64) == SHORT == LONGEST + 1
    assert quick.open().verifiable(quick.info.context - 3, 64) == 3


@pytest.mark.parametrize(
    "options", [{"weights": "fp32"}, {"weights": "q4", "exact": True}, {"weights": "q4"}], ids=str
)
def test_graphs_with_products_in_floats_do_not_claim_it(checkpoint, tmp_path, options):
    folder = export_folder(checkpoint, tmp_path / "out", **options)
    engine = OrtEngine(open_folder(folder, kv="float"), threads=1)
    assert not engine.info.rows_alike
    assert engine.open().verifiable(40, 64) == 64


@pytest.mark.parametrize("threads", [1, 2])
def test_where_a_repeatable_prompt_is_cut_changes_no_bit(folder, threads):
    """What a cache holds decides on no token then; else, long calls see their own more exactly."""
    ids = np.random.default_rng(0).integers(0, 97, 150).tolist()

    def logits(engine, *cuts):
        session = engine.open()
        for begin, end in pairwise((0, *cuts, len(ids))):
            found = session.prefill(ids[begin:end])
        return found, session.step(5)

    cuts = [(), (1,), (16, 32), (17,), (149,), (40, 41, 100)]
    engine = OrtEngine(open_folder(folder), threads=threads, repeatable=True)
    whole, *others = (logits(engine, *each) for each in cuts)
    for other in others:
        np.testing.assert_array_equal(other, whole)
    quicker = OrtEngine(open_folder(folder), threads=threads)
    assert not np.array_equal(logits(quicker), logits(quicker, 40))


def test_it_is_on_by_default_where_nothing_changes(folder, byte_tokenizer, checkpoint):
    """With one token made certain, the reply repeats itself."""
    favourite = SamplingParams(logit_bias={7: 99.0}, max_tokens=50, ignore_eos=True)
    off = SamplingParams(**vars(favourite) | {"prompt_lookup": 0})
    for kv, default in (("int8", True), ("float", False)):
        engine = OrtEngine(open_folder(folder, kv=kv), threads=1)
        generator = Generator(engine, byte_tokenizer)
        stats = generator.generate([1, 2, 3], favourite).stats
        assert (stats.accepted_tokens > 20) == default
        assert generator.generate([1, 2, 3], off).stats.drafted_tokens == 0


def test_experts_are_computed_in_floats_and_not_alike(tmp_path):
    model = tiny_checkpoint(tmp_path / "moe", kind="Mixtral")
    folder = export_folder(model, tmp_path / "out", weights="q4")
    text = [path.read_bytes() for path in (folder / "onnx").glob("*.onnx")]
    assert not any(re.search(rb"pippin\.rows_alike", graph) for graph in text)
