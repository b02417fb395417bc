"""Heads by what they do: heads that were built to do it, and attention by transformers."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from pippin.apps.insight import heads
from pippin.apps.insight.heads import KINDS, HeadReport, describe, score_heads, token_spans
from pippin.apps.insight.probe_texts import (
    Probe,
    bracket_probes,
    coreference_probes,
    topic_probes,
)
from pippin.apps.insight.trace import LayerTrace, Trace
from pippin.apps.models import load_generator
from pippin.kernels.spec import AttentionSpec
from pippin.runtime.errors import InputError
from pippin.runtime.tokenizer import Tokenizer
from support.byte_tokenizer import write_tokenizer
from support.tiny import Tiny, make_tiny
from support.wheels import smollm2_gguf

# The keys that a head attends to, all alike, for each query, given the text of each token.
Rule = Callable[[list[str]], list[list[int]]]
BY_PLACE = ("previous-token", "first-token")
DOCUMENT = Path(__file__).parents[2] / "docs" / "attention-heads.md"
PAIRS = {")": "(", "]": "[", "}": "{"}


def _probes() -> list[Probe]:
    return [*bracket_probes(), *topic_probes(), *coreference_probes()]


def _word_tokenizer(bos: bool, **parts: Any) -> Tokenizer:
    """Byte-level BPE trained on the probes, until every word is a token."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        show_progress=False,
        special_tokens=["<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator([probe.text for probe in _probes()], trainer)
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
        )
    for name, part in parts.items():
        setattr(backend, name, part)
    return Tokenizer.from_parts(backend.to_str(), {}, {}, {})


def _matching(texts: list[str]) -> list[list[int]]:
    """By counting back from each closing bracket; a quote closes when an odd number came before."""
    found: list[list[int]] = []
    for i, text in enumerate(texts):
        closing = re.search(r"[)\]}]", text)
        keys: list[int] = []
        if closing:
            depth, j = 1, i
            while depth and j:
                j -= 1
                depth += texts[j].count(closing[0]) - texts[j].count(PAIRS[closing[0]])
            keys = [j] * (depth == 0)
        elif '"' in text:
            quotes = [j for j in range(i) if '"' in texts[j]]
            keys = quotes[-1:] if len(quotes) % 2 else []
        found.append(keys)
    return found


def _words(probes: list[Probe], at: int) -> set[str]:
    """Words that look back (0), or that are looked at (1)."""
    spans = [
        (p, s) for p in probes for link in p.links for s in ([link[0]] if at == 0 else link[1])
    ]
    return {probe.text[slice(*span)] for probe, span in spans}


def _noun(texts: list[str]) -> list[list[int]]:
    """A pronoun attends to the last noun before it that some pronoun stands for."""
    pronouns, nouns = _words(coreference_probes(), 0), _words(coreference_probes(), 1)
    texts = [text.strip() for text in texts]
    at = [j for j, text in enumerate(texts) if text in nouns]
    return [
        [j for j in at if j < i][-1:] if text in pronouns else [] for i, text in enumerate(texts)
    ]


def _topic(texts: list[str]) -> list[list[int]]:
    """A word of a topic attends to all the words that the topic began with."""
    late, early = _words(topic_probes(), 0), _words(topic_probes(), 1)
    texts = [text.strip() for text in texts]
    at = [j for j, text in enumerate(texts) if text in early]
    return [[j for j in at if j < i] if text in late else [] for i, text in enumerate(texts)]


RULES: dict[str, Rule] = {
    "previous-token": lambda texts: [[i - 1] if i else [] for i in range(len(texts))],
    "first-token": lambda texts: [[0] for _ in texts],
    "duplicate-token": lambda texts: [
        [j for j in range(i) if texts[j] == text] for i, text in enumerate(texts)
    ],
    "induction": lambda texts: [
        [j for j in range(1, i + 1) if texts[j - 1] == text] for i, text in enumerate(texts)
    ],
    "bracket": _matching,
    "distant-topic": _topic,
    "coreference": _noun,
}


def _built_layer(index: int, rules: Sequence[Rule | None], texts: list[str]) -> LayerTrace:
    """A layer whose heads follow `rules`; to itself where a rule names nothing, and None: to all
    keys alike."""
    size = len(texts)
    q = np.zeros((len(rules), size, size), np.float32)
    for head, rule in enumerate(rules):
        for i, keys in enumerate(rule(texts) if rule else []):
            q[head, i, keys or [i]] = 50
    k = np.eye(size, dtype=np.float32)[None]
    spec = AttentionSpec(heads=len(rules), kv_heads=1, head_dim=size, scale=1.0)
    return LayerTrace(index, q, k, k, spec, None, None)


# Two layers: a head for each kind and an even one; the same in reverse.
LAYERS: Any = [[*RULES.values(), None], [None, *reversed(RULES.values())]]


def _built_report(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer, layers: Any = LAYERS
) -> HeadReport:
    def trace(generator: Any, tokens: Sequence[int]) -> Trace:
        texts = [tokenizer.token_text(token) for token in tokens]
        built = {i: _built_layer(i, rules, texts) for i, rules in enumerate(layers)}
        return Trace(tuple(tokens), built, np.zeros(1))

    monkeypatch.setattr(heads, "trace", trace)
    info = SimpleNamespace(model="built")
    generator: Any = SimpleNamespace(tokenizer=tokenizer, engine=SimpleNamespace(info=info))
    return score_heads(generator)


@pytest.fixture(scope="module", params=[False, True], ids=["no-bos", "bos"])
def built(request: pytest.FixtureRequest) -> HeadReport:
    with pytest.MonkeyPatch.context() as patch:
        return _built_report(patch, _word_tokenizer(request.param))


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_was_built_for_it_scores_1(built: HeadReport, kind: str) -> None:
    found, head = built.kinds[kind], KINDS.index(kind)
    assert found.score.shape == found.control.shape == (2, 8)
    assert found.score[0, head] == pytest.approx(1, abs=1e-5)
    assert np.delete(found.score[0], head).max() < 0.6
    if kind in BY_PLACE:  # whatever the words are
        assert found.control[0, head] == pytest.approx(1, abs=1e-5)
    else:
        assert found.control[0, head] < 0.2
    best = found.best(2)
    assert [(each.layer, each.head) for each in best] == [(0, head), (1, 7 - head)]
    assert best[0].kind == kind
    assert (best[0].score, best[0].control) == (found.score[0, head], found.control[0, head])


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_attends_evenly_scores_what_is_said(built: HeadReport, kind: str) -> None:
    found = built.kinds[kind]
    assert found.score[0, 7] == pytest.approx(found.uniform, rel=1e-5)
    assert found.control[0, 7] == pytest.approx(found.uniform, rel=1e-5)
    assert 0 < found.uniform < 0.1
    assert found.queries >= 14


@pytest.mark.parametrize("kind", KINDS)
def test_the_second_layer_is_the_first_in_reverse(built: HeadReport, kind: str) -> None:
    found = built.kinds[kind]
    np.testing.assert_allclose(found.score[1], found.score[0, ::-1], atol=1e-6)
    np.testing.assert_allclose(found.control[1], found.control[0, ::-1], atol=1e-6)


def test_every_kind_is_described() -> None:
    assert tuple(RULES) == KINDS
    for kind in KINDS:
        assert describe(kind).endswith(".")
    assert "2209.11895" in describe("induction")


def test_a_tokenizer_that_loses_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    lossy = _word_tokenizer(False, decoder=None)  # spaces come back as Ġ
    with pytest.raises(InputError, match="does not give a text back as it was"):
        _built_report(monkeypatch, lossy)


def test_layers_of_different_numbers_of_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="from 2 to 3 heads"):
        _built_report(monkeypatch, _word_tokenizer(False), [[None] * 3, [None] * 2])


def test_tokens_stand_where_the_library_says() -> None:
    tokenizer = _word_tokenizer(False)
    backend = Backend.from_str(tokenizer.to_json())
    for probe in _probes():
        encoding = backend.encode(probe.text)
        assert token_spans(tokenizer, encoding.ids) == encoding.offsets


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(write_tokenizer(tmp_path_factory.mktemp("bytes")))


@given(text=st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20))
def test_a_character_belongs_to_its_last_byte(byte_tokenizer: Tokenizer, text: str) -> None:
    spans = token_spans(byte_tokenizer, byte_tokenizer.encode(text))
    ends = np.cumsum([len(char.encode()) for char in text]).tolist()
    assert {i: span for i, span in enumerate(spans) if span[0] < span[1]} == {
        end - 1: (at, at + 1) for at, end in enumerate(ends)
    }


def test_special_tokens_stand_nowhere() -> None:
    tokenizer = _word_tokenizer(True)
    text = _probes()[0].text
    assert token_spans(tokenizer, tokenizer.encode(text))[0] == (0, 0)
    assert token_spans(tokenizer, []) == []


@pytest.mark.parametrize("index", range(2))
def test_brackets_are_paired(index: int) -> None:
    probe = bracket_probes()[index]
    closers = sum(probe.text.count(char) for char in ")]}") + probe.text.count('"') // 2
    assert len(probe.links) == closers
    for (end, _), ((start, _),) in probe.links:
        opening, inner, closing = probe.text[start], probe.text[start + 1 : end], probe.text[end]
        assert opening + closing in ("()", "[]", "{}", '""')
        assert inner.count('"') % 2 == 0
        assert all(inner.count(left) == inner.count(right) for left, right in ("()", "[]", "{}"))


def test_marks_are_taken_off() -> None:
    for probe in (*topic_probes(), *coreference_probes()):
        assert not re.search(r"[{}<\d]", probe.text)
        assert len(probe.links) >= 7
        for (start, end), keys in probe.links:
            assert probe.text[start:end].isalpha()
            assert all(probe.text[slice(*key)].isalpha() and key[1] < start for key in keys)


class _Peer:
    """A tiny random model, its report, and what transformers attends to on the same tokens."""

    def __init__(self, folder: Path) -> None:
        config = {"vocab_size": 259, "head_dim": 16, "max_position_embeddings": 1024}
        self.tiny: Tiny = make_tiny(folder, num_hidden_layers=2, **config)
        write_tokenizer(folder)
        generator = load_generator(str(folder), "mlx")
        self.steps: list[tuple[int, int]] = []
        with pytest.MonkeyPatch.context() as patch:
            self.tokens: list[list[int]] = []
            traced = heads.trace

            def trace(generator: Any, tokens: list[int]) -> Trace:
                self.tokens.append(list(tokens))
                return traced(generator, tokens)

            patch.setattr(heads, "trace", trace)
            self.report = score_heads(generator, lambda *step: self.steps.append(step))
        self.attention = [self._attention(tokens) for tokens in self.tokens]

    def _attention(self, tokens: list[int]) -> np.ndarray:
        """[N, H, S, S]"""
        with torch.inference_mode():
            out = self.tiny.reference(torch.tensor([tokens]), output_attentions=True)
        return torch.cat(out.attentions).numpy()

    def check(self, kind: str, texts: Sequence[int], links: Sequence[dict[int, list[int]]]) -> None:
        """Scores are the means of weights at `links` in the texts of those numbers, which stand
        before their shuffled ones."""
        for shuffled, found in enumerate(
            (self.report.kinds[kind].score, self.report.kinds[kind].control)
        ):
            wanted = [
                sum(self.attention[2 * text + shuffled][:, :, query, key] for key in keys)
                for text, pairs in zip(texts, links, strict=True)
                for query, keys in pairs.items()
            ]
            np.testing.assert_allclose(found, np.mean(wanted, axis=0), atol=1e-5)
            assert found.std() > 1e-3


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> _Peer:
    return _Peer(tmp_path_factory.mktemp("peer") / "model")


# Two sequences of repeats come first, then two texts each of brackets, topics and pronouns. A
# token is a byte, and of these texts a character.
REPEATS, TEXTS = (0, 1), {"bracket": (2, 3), "distant-topic": (4, 5), "coreference": (6, 7)}
PROSE = (*TEXTS["distant-topic"], *TEXTS["coreference"])


def test_texts_are_followed_by_themselves_shuffled(peer: _Peer) -> None:
    assert peer.steps == [(done, 16) for done in range(1, 17)]
    for text, shuffled in zip(peer.tokens[::2], peer.tokens[1::2], strict=True):
        assert sorted(text) == sorted(shuffled)
        assert np.mean(np.array(text) == np.array(shuffled)) < 0.2
    for text, probe in zip(peer.tokens[4::2], _probes(), strict=True):
        assert bytes(text).decode("ascii") == probe.text
    for text in (peer.tokens[0], peer.tokens[2]):
        assert text == 4 * text[:25]
        assert len(set(text)) == 25
        assert max(text) < 256


def test_places_are_those_of_transformers(peer: _Peer) -> None:
    lengths = [len(peer.tokens[2 * text]) for text in PROSE]
    peer.check("previous-token", PROSE, [{i: [i - 1] for i in range(8, n)} for n in lengths])
    peer.check("first-token", PROSE, [{i: [0] for i in range(8, n)} for n in lengths])


def test_repeats_are_those_of_transformers(peer: _Peer) -> None:
    before = {i: list(range(i - 25, -1, -25)) for i in range(25, 100)}
    after = {i: [j + 1 for j in keys] for i, keys in before.items()}
    peer.check("duplicate-token", REPEATS, [before, before])
    peer.check("induction", REPEATS, [after, after])


@pytest.mark.parametrize(
    ("kind", "probes"),
    [
        ("bracket", bracket_probes()),
        ("distant-topic", topic_probes()),
        ("coreference", coreference_probes()),
    ],
    ids=["bracket", "distant-topic", "coreference"],
)
def test_words_are_those_of_transformers(peer: _Peer, kind: str, probes: list[Probe]) -> None:
    links = [
        {end - 1: [at for key in keys for at in range(*key)] for (_, end), keys in probe.links}
        for probe in probes
    ]
    peer.check(kind, TEXTS[kind], links)


def _documented() -> list[list[str]]:
    """Rows of the table of SmolLM2's heads: rule, layer, head, score, control, uniform, tokens."""
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z-]+) \| (\d+ .*) \|$", text, re.MULTILINE)
    return [[kind, *rest.split(" | ")] for kind, rest in rows]


@pytest.mark.slow
def test_smollm2_on_onnxruntime() -> None:
    report = score_heads(load_generator(str(smollm2_gguf()), "onnx"))
    assert [each.score.shape for each in report.kinds.values()] == [(30, 9)] * len(KINDS)
    for kind in ("induction", "duplicate-token"):
        (best,) = report.kinds[kind].best()
        assert best.score > 0.7
        assert best.control < 0.1
    first, previous = report.kinds["first-token"], report.kinds["previous-token"]
    assert (first.score > 0.5).sum() > 50
    assert first.score.mean() > 5 * first.uniform
    assert previous.best()[0].score > 0.5
    rows = _documented()
    assert [row[0] for row in rows] == [kind for kind in KINDS for _ in range(3)]
    for kind, layer, head, *numbers, tokens in rows:
        found, at = report.kinds[kind], (int(layer), int(head))
        score, control, uniform = map(float, numbers)
        assert found.score[at] == pytest.approx(score, abs=0.03)
        assert found.control[at] == pytest.approx(control, abs=0.03)
        assert (found.uniform, found.queries) == (pytest.approx(uniform, abs=6e-4), int(tokens))
        assert score > found.best(3)[2].score - 0.03
