"""Folders of onnxruntime-genai's model builder and of optimum run in our generator, unchanged."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from pippin.runtime.errors import InputError
from pippin.runtime.generator import Generator
from pippin.runtime.ort_engine import OrtEngine
from pippin.runtime.prompt_cache import PromptCache
from pippin.runtime.sampling import SamplingParams
from support.byte_tokenizer import END_OF_TEXT, IM_END
from support.foreign_exports import genai_greedy, optimum_greedy
from support.foreign_folders import Foreign, foreign

pytestmark = pytest.mark.slow  # each folder takes its exporter some 8 seconds

LONG = [int(i) for i in np.random.default_rng(0).integers(0, 256, 300)]  # more than one call
SHORT = LONG[:20]
NEW = 16

EXACT = [
    *("genai", "genai-fp16", "genai-one-row", "genai-hidden-states", "genai-qwen3"),
    *("optimum", "optimum-gpt2", "optimum-merged"),
]
SHARED = {"genai", "genai-fp16", "genai-one-row", "genai-hidden-states", "genai-qwen3"}


@pytest.fixture(params=EXACT)
def kind(request) -> str:
    return request.param


@pytest.fixture
def folder(kind) -> Foreign:
    return foreign(kind)


@pytest.fixture
def copy(tmp_path):
    """A copy of a folder, to damage."""
    return lambda kind: Path(shutil.copytree(foreign(kind).path, tmp_path / kind))


def greedy(session, ids: list[int]) -> list[int]:
    logits, tokens = session.prefill(ids), []
    for _ in range(NEW):
        tokens.append(int(logits.argmax()))
        logits = session.step(tokens[-1])
    return tokens


def change_json(path: Path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("ids", [LONG[:1], LONG], ids=["1-token", "300-tokens"])
def test_greedy_tokens_are_those_of_transformers(ids, kind, folder):
    engine = OrtEngine.from_folder(folder.path)
    tokens = greedy(engine.open(), ids)
    wanted = folder.tiny.logits([*ids, *tokens])[len(ids) - 1 : -1].argmax(-1)
    assert tokens == wanted.tolist()
    assert engine._graph.shared == (kind in SHARED)  # else each step would copy the caches


def test_logits_of_every_token(folder):
    wanted = folder.tiny.logits(LONG)
    found = OrtEngine.from_folder(folder.path).open().verify(LONG)
    assert found.dtype == np.float32
    assert np.abs(found - wanted).max() <= folder.tolerance * np.abs(wanted).max()


def test_any_way_to_the_same_tokens(folder, tmp_path):
    """Rolled back, forked, saved and restored, a session says what one prefill says."""
    engine = OrtEngine.from_folder(folder.path)
    wanted = folder.tiny.logits(LONG[:50])[-1]

    def check(logits) -> None:
        assert np.abs(logits - wanted).max() <= folder.tolerance * np.abs(wanted).max()

    session = engine.open()
    session.prefill([*LONG[:30], 7, 8, 9])
    session.rollback(30)
    fork = session.fork()
    check(session.prefill(LONG[30:50]))
    check(fork.verify(LONG[30:50])[-1])
    session.rollback(49)
    session.save(tmp_path / "cache", LONG[:49])
    restored, tokens = engine.restore(tmp_path / "cache")
    assert tokens == LONG[:49]
    check(restored.step(LONG[49]))


@pytest.mark.parametrize(
    ("kind", "theirs", "ids"),
    [
        ("genai-int4", genai_greedy, LONG),
        ("genai-int8", genai_greedy, LONG),
        ("optimum-int8", optimum_greedy, SHORT),  # its int8 activations go by the whole call
    ],
    ids=["genai-int4", "genai-int8", "optimum-int8"],
)
def test_quantized_folders_say_what_their_own_programs_say(kind, theirs, ids):
    path = foreign(kind).path
    tokens = greedy(OrtEngine.from_folder(path).open(), ids)
    own = theirs(path, ids, NEW)
    assert own
    assert tokens[: len(own)] == own  # theirs end at an end-of-turn token


@pytest.mark.parametrize("kind", ["genai", "optimum", "optimum-merged"])
def test_a_conversation(kind):
    """Template, tokenizer and end-of-turn tokens come from whatever files the folder has."""
    generator = Generator.from_folder(foreign(kind).path, threads=1)
    assert {IM_END, END_OF_TEXT} <= generator.tokenizer.eos_token_ids
    cache = PromptCache(generator.engine)
    messages = [{"role": "user", "content": "Hi"}]
    params = SamplingParams(temperature=0, max_tokens=8)
    assert generator.generate(messages, params, cache=cache).tokens
    assert generator.tokenizer.decode(generator.encode(messages)) == "user\nHi\nassistant\n"
    messages += [{"role": "assistant", "content": "x"}, {"role": "user", "content": "More"}]
    again = generator.generate(messages, params, cache=cache)
    fresh = generator.generate(messages, params)
    assert again.stats.cached_tokens > 0
    assert again.tokens == fresh.tokens


def test_other_names(copy):
    """genai_config.json says what the graph calls its tensors."""
    path = copy("genai")
    renamed = {"input_ids": "tokens", "attention_mask": "mask", "logits": "scores"}
    for old, new in (("past_key_values", "old"), ("present", "new")):
        for n in range(2):
            renamed |= {f"{old}.{n}.key": f"{new}_k_{n}", f"{old}.{n}.value": f"{new}_v_{n}"}
    model = onnx.load(path / "model.onnx", load_external_data=False)
    for value in (*model.graph.input, *model.graph.output):
        value.name = renamed[value.name]
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    (path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match=r"lacks attention_mask and input_ids|has no past_key"):
        OrtEngine.from_folder(path)

    def change(content):
        decoder = content["model"]["decoder"]
        decoder["inputs"] = {
            "input_ids": "tokens",
            "attention_mask": "mask",
            "past_key_names": "old_k_%d",
            "past_value_names": "old_v_%d",
        }
        decoder["outputs"] = {
            "logits": "scores",
            "present_key_names": "new_k_%d",
            "present_value_names": "new_v_%d",
        }

    change_json(path / "genai_config.json", change)
    wanted = foreign("genai").tiny.logits(SHORT)[-1]
    logits = OrtEngine.from_folder(path).open().prefill(SHORT)
    assert np.abs(logits - wanted).max() <= 1e-4 * np.abs(wanted).max()


def test_a_graph_without_ids():
    with pytest.raises(InputError, match=r"genai-no-ids.model\.onnx lacks input_ids"):
        Generator.from_folder(foreign("genai-no-ids").path)


def test_a_missing_data_file(copy):
    path = copy("genai")
    (path / "model.onnx.data").unlink()
    with pytest.raises(InputError, match=r"model\.onnx\.data is missing"):
        Generator.from_folder(path)


def test_a_data_file_that_is_cut_off(copy):
    path = copy("genai")
    data = path / "model.onnx.data"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"model\.onnx\.data has [\d,]+ bytes where model\.onnx"):
        Generator.from_folder(path)


@pytest.mark.parametrize("kind", ["genai", "optimum"])
def test_a_tokenizer_of_another_model(kind, copy):
    from tokenizers import Tokenizer, models

    path = copy(kind)
    words = {f"w{n}": n for n in range(300)}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(path / "tokenizer.json"))
    (path / "chat_template.jinja").unlink()
    with pytest.raises(InputError, match=r"tokenizer\.json has \d+ tokens, .* logits have 288"):
        Generator.from_folder(path)


@pytest.mark.parametrize(
    ("kind", "file", "key", "found"),
    [
        ("genai", "genai_config.json", "num_key_value_heads", 2),
        ("genai", "genai_config.json", "num_hidden_layers", 2),
        ("optimum", "config.json", "head_dim", 16),
        ("optimum", "config.json", "num_key_value_heads", 2),
    ],
)
def test_a_config_that_contradicts_the_graph(kind, file, key, found, copy):
    path = copy(kind)

    def change(content):
        (content["model"]["decoder"] if kind == "genai" else content)[key] = 5

    change_json(path / file, change)
    with pytest.raises(InputError, match=f"has {found} where {file} says {key} = 5"):
        Generator.from_folder(path)
