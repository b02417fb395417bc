"""GGUF files of every architecture, by llama.cpp's converter; transformers is the judge."""

from itertools import count
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.mlx_model.checkpoints.checkpoint import Checkpoint, open_checkpoint
from pippin.mlx_model.checkpoints.gguf import read_gguf, read_gguf_metadata
from pippin.mlx_model.checkpoints.gguf_architectures import ARCHITECTURES
from pippin.mlx_model.checkpoints.gguf_model import load_weights, read_config
from pippin.mlx_model.checkpoints.gguf_tokenizer import convert_gguf_tokenizer
from pippin.mlx_model.engine import MlxEngine
from pippin.mlx_model.load import load_decoder
from pippin.runtime.errors import InputError
from pippin.runtime.tokenizer import Tokenizer
from support import corpora
from support.families import TOLERANCE, error
from support.gguf_files import CASES, LENGTH, Converted, convert_all, rewrite
from support.tiny import Tiny

SHORT = 20  # tokens: with LENGTH, on both sides of where longrope changes
QUANTIZED = ("Q8_0", "Q4_0", "Q4_1", "MXFP4")


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Converted]:
    return convert_all(tmp_path_factory.mktemp("architectures"))


def logits(path: Path, ids: list[int]) -> np.ndarray:
    """Ours, float32 [L, V]."""
    checkpoint = Checkpoint(path, read_config(read_gguf(path)), {}, "", {}, path.name)
    engine = MlxEngine(load_decoder(checkpoint, mx.float32), path.name, checkpoint.fingerprint)
    return np.array(engine.open().verify(ids))


def test_every_architecture_has_a_case() -> None:
    assert {name.partition(",")[0] for name in CASES} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_model_that_was_converted(
    converted: dict[str, Converted], name: str
) -> None:
    model = converted[name]
    measured = []
    for length in (LENGTH, SHORT):  # one of them on each side of where longrope changes
        ids = model.ids[:length]
        measured.append(error(logits(model.path, ids), model.tiny.logits(ids)))
    assert max(measured) <= TOLERANCE
    print(f"{name}: {max(measured):.1e}")


@pytest.mark.parametrize("name", CASES)
def test_config_is_that_of_the_model(converted: dict[str, Converted], name: str) -> None:
    model = converted[name]
    theirs = model.tiny.reference.config.to_dict()
    ours = read_config(read_gguf(model.path))
    told = ours.keys() & {key for key, value in theirs.items() if value is not None}
    assert {key: ours[key] for key in told} == {key: theirs[key] for key in told}
    assert len(told) >= 9


# Its reader of GGUF gives up on the tensors of qwen2moe and the metadata of gpt-oss, and does not
# know the other architectures. It is told the config: of most it reads a part only.
READ_BY_TRANSFORMERS = (
    *("llama", "qwen2", "qwen2, yarn, tied", "qwen3", "gemma2", "gemma3", "phi3", "stablelm"),
    *("gpt2", "starcoder2", "qwen3moe"),
)


@pytest.mark.parametrize("name", READ_BY_TRANSFORMERS)
def test_transformers_reads_the_same_file_alike(
    converted: dict[str, Converted], tmp_path: Path, name: str
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = converted[name]
    tokens = {"tokenizer.ggml.tokens": [f"t{index}" for index in range(97)]}  # it counts them
    path = rewrite(model.path, tmp_path / "x.gguf", keys=tokens)
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=path.name, dtype=torch.float32, config=model.tiny.reference.config
    )
    measured = error(
        logits(model.path, model.ids), Tiny(model.path, theirs.eval()).logits(model.ids)
    )
    print(f"{name}: {measured:.1e}")
    assert measured <= TOLERANCE


def is_matrix(name: str, values: np.ndarray) -> bool:
    """Whether llama.cpp quantizes it."""
    kept = (
        "norm.weight",
        "ffn_gate_inp.weight",
        "ffn_gate_inp_shexp.weight",
        "position_embd.weight",
    )
    return values.ndim > 1 and name.endswith(".weight") and not name.endswith(kept)


@pytest.mark.parametrize("name", CASES)
def test_quantized_matrices_are_repacked(
    converted: dict[str, Converted], tmp_path: Path, name: str
) -> None:
    model, turn = converted[name], count()

    def packed(tensor: str, values: np.ndarray) -> tuple[np.ndarray, GGMLQuantizationType | None]:
        if not is_matrix(tensor, values):
            return values, None
        kind = GGMLQuantizationType[QUANTIZED[next(turn) % len(QUANTIZED)]]
        plain[tensor] = dequantize(quantize(values, kind), kind)
        return quantize(values, kind), kind

    plain: dict[str, np.ndarray] = {}
    small = rewrite(model.path, tmp_path / "small.gguf", packed)
    large = rewrite(model.path, tmp_path / "large.gguf", lambda n, v: (plain.get(n, v), None))
    weights = load_weights(read_gguf(small))
    assert sum(array.dtype == mx.uint32 for array in weights.values()) == len(plain) >= 12
    assert error(logits(small, model.ids), logits(large, model.ids)) <= TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_a_key_of_no_meaning_here_is_refused_by_name(
    converted: dict[str, Converted], tmp_path: Path, name: str
) -> None:
    model, arch = converted[name], name.partition(",")[0]
    path = rewrite(model.path, tmp_path / "x.gguf", keys={f"{arch}.attention.invented": 2})
    with pytest.raises(InputError, match=rf"{arch}.attention.invented, which is not implemented"):
        read_config(read_gguf(path))


@pytest.mark.parametrize("name", CASES)
def test_a_tensor_of_no_meaning_here_is_refused_by_name(
    converted: dict[str, Converted], tmp_path: Path, name: str
) -> None:
    extra = {"blk.0.attn_gate.weight": np.ones((4, 4), np.float32)}
    path = rewrite(converted[name].path, tmp_path / "x.gguf", added=extra)
    with pytest.raises(InputError, match=r"tensor 'blk.0.attn_gate.weight', which is not impl"):
        load_weights(read_gguf(path))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("qwen2", {"keys": {"qwen2.rope.dimension_count": 8}}, r"= 8; only 16 is implemented"),
        ("qwen2", {"keys": {"qwen2.attention.sliding_window": 8}}, r"sliding_window, which is not"),
        ("qwen2", {"keys": {"qwen2.rope.dimension_sections": [8, 4, 4, 0]}}, r"dimension_sections"),
        ("olmo2", {"keys": {"olmo2.attention.sliding_window": 8}}, r"sliding_window, which is not"),
        ("gemma2", {"keys": {"gemma2.rope.freq_base_swa": 5.5}}, r"freq_base_swa = 5.5; only 1000"),
        ("gemma3", {"keys": {"gemma3.attention.sliding_window_pattern": 0}}, r"pattern = 0, exp"),
        ("gemma3", {"keys": {"gemma3.attention.sliding_window_pattern": [True]}}, r"or 7 bools"),
        ("gemma", {"keys": {"gemma.attention.scale": 0.5}}, r"attention.scale, which is not impl"),
        (
            "granite",
            {"keys": {"granite.rope.scaling.finetuned": False}},
            r"finetuned = False; only",
        ),
        ("qwen2moe", {"keys": {"qwen2moe.expert_weights_norm": True}}, r"= True; only False"),
        ("qwen3moe", {"keys": {"qwen3moe.expert_weights_norm": False}}, r"= False; only True"),
        ("olmoe", {"keys": {"olmoe.expert_gating_func": 2}}, r"expert_gating_func, which is not"),
        ("phi3, longrope", {"dropped": ("rope_factors_short.weight",)}, r"factors_short.*incompl"),
        ("glm4", {"keys": {"glm4.nextn_predict_layers": 1}}, r"nextn_predict_layers, which is not"),
        ("stablelm", {"keys": {"stablelm.use_parallel_residual": 2}}, r"= 2, expected one bool"),
    ],
)
def test_what_changes_the_output_is_refused_by_name_in_all(
    converted: dict[str, Converted],
    tmp_path: Path,
    name: str,
    changes: dict[str, Any],
    message: str,
) -> None:
    path = rewrite(converted[name].path, tmp_path / "x.gguf", **changes)
    with pytest.raises(InputError, match=message):
        read_config(read_gguf(path))


def test_old_spellings_of_qwens_experts(converted: dict[str, Converted], tmp_path: Path) -> None:
    """The gate of the shared expert as a vector; the width of experts by their tensors alone."""
    model = converted["qwen2moe"]
    path = rewrite(
        model.path,
        tmp_path / "x.gguf",
        lambda name, values: (values[0] if "gate_inp_shexp" in name else values, None),
        keys={"qwen2moe.expert_feed_forward_length": None},
    )
    np.testing.assert_array_equal(logits(path, model.ids), logits(model.path, model.ids))


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "gpt-oss"])
def test_a_whole_file_opens(converted: dict[str, Converted], tmp_path: Path, name: str) -> None:
    model = converted[name]
    vocabulary = {
        "model": "gpt2",
        "pre": "qwen2",
        "tokens": [*"abcd", "ab", *(f"<{index}>" for index in range(5, 97))],
        "token_type": [1] * 5 + [3] * 92,
        "merges": ["a b"],
        "eos_token_id": 7,
    }
    keys = {f"tokenizer.ggml.{key}": value for key, value in vocabulary.items()}
    checkpoint = open_checkpoint(rewrite(model.path, tmp_path / "x.gguf", keys=keys))
    decoder = load_decoder(checkpoint, mx.float32)
    engine = MlxEngine(decoder, name, checkpoint.fingerprint)
    assert checkpoint.tokenizer().encode("abc<7>") == [4, 2, 7]
    assert checkpoint.generation_config["eos_token_id"] == [7]
    found = np.array(engine.open().verify(model.ids))
    np.testing.assert_array_equal(found, logits(model.path, model.ids))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("gemma2", "attn_logit_softcapping"),
        ("gemma2", "final_logit_softcapping"),
        ("gemma3", "rope.freq_base_swa"),
        ("glm4", "attention.value_length"),
        ("qwen3moe", "expert_feed_forward_length"),
        ("stablelm", "use_parallel_residual"),
        ("stablelm, parallel", "use_parallel_residual"),
    ],
)
def test_what_old_files_leave_out(
    converted: dict[str, Converted], tmp_path: Path, name: str, key: str
) -> None:
    source, key = converted[name].path, f"{name.partition(',')[0]}.{key}"
    assert key in read_gguf(source).metadata
    path = rewrite(source, tmp_path / "x.gguf", keys={key: None})
    assert read_config(read_gguf(path)) == read_config(read_gguf(source))


def test_gemma3s_windows_by_a_list(converted: dict[str, Converted], tmp_path: Path) -> None:
    pattern = "gemma3.attention.sliding_window_pattern"
    layers = [True, True, False, True, False, True, False]
    path = rewrite(converted["gemma3"].path, tmp_path / "x.gguf", keys={pattern: layers})
    kinds = read_config(read_gguf(path))["layer_types"]
    assert [kind == "sliding_attention" for kind in kinds] == layers


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(["gemma3", "phi3, longrope", "qwen2moe", "gpt-oss", "granite"]),
    damage=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=3),
)
def test_damaged_files_of_all_kinds_are_read_or_refused(
    converted: dict[str, Converted],
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    damage: list[tuple[int, int]],
) -> None:
    source = converted[name].path
    header = min(tensor.offset for tensor in read_gguf(source).tensors.values())
    data = bytearray(source.read_bytes())
    for position, value in damage:
        data[position % header] = value
    path = tmp_path_factory.mktemp("g") / "x.gguf"
    path.write_bytes(data)
    message = ""
    try:
        file = read_gguf(path)
        read_config(file)
        mx.eval(load_weights(file))
    except InputError as error:
        message = str(error)
    assert "\n" not in message


GEMMA_TOKENS = [
    *(("<pad>", 3), ("<eos>", 3), ("<bos>", 3), ("<unk>", 2)),
    *(("\n", 4), ("\n\n", 4), ("  ", 4), ("   ", 4)),
    *((f"<0x{byte:02X}>", 6) for byte in range(256)),
    *((text, 1) for text in ("▁t", "he", "▁the", "in", "ing", "▁th", "er", "▁a")),
    *((text, 1) for text in "▁abcdefghijklmnopqrstuvwxyz"),
]


@pytest.mark.parametrize("arch", ["gemma2", "gemma3"])
@pytest.mark.parametrize(
    "text",
    ["the thing", " the", "a  the", "in\n\nthe   other\n", "<bos>a é", "there   the", "", "   in"],
)
def test_gemmas_tokenizer_is_that_of_transformers(tmp_path: Path, arch: str, text: str) -> None:
    from transformers import AutoTokenizer

    writer = GGUFWriter(tmp_path / "x.gguf", arch)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([token for token, _ in GEMMA_TOKENS])
    writer.add_token_types([kind for _, kind in GEMMA_TOKENS])
    writer.add_token_scores(
        [-1000.0 if k == 4 else -float(i) for i, (_, k) in enumerate(GEMMA_TOKENS)]
    )
    writer.add_pad_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="x.gguf")
    metadata = read_gguf_metadata(tmp_path / "x.gguf")
    ours = Tokenizer.from_parts(*convert_gguf_tokenizer(metadata), {}, {})
    assert ours.encode(text) == theirs.encode(text)


def test_phi3s_marks_take_in_the_white_space_after_them() -> None:
    tokenizer = corpora.vocabulary("phi-3")
    marked, plain = (
        tokenizer.encode(t) for t in ("<|user|>\n hello<|end|>\n", "<|user|>hello<|end|>")
    )
    assert marked == plain
    begun = tokenizer.encode("<|endoftext|>\n", add_special_tokens=False)
    assert len(begun) > 1
