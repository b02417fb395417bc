"""What is exported for other providers than the CPU holds to what they publish."""

import click
import pytest

from pippin.commands.export import command
from pippin.export.dispatch import export_checkpoint
from pippin.export.targets import TARGETS
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.runtime.errors import InputError
from support.encoders import ENCODERS, make_stack
from support.exported import (
    difference,
    export_folder,
    mlx_logits,
    random_ids,
    read_model,
    tiny_checkpoint,
)
from support.tiny import make_tiny


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("name", TARGETS)
def test_the_heavy_operators_are_on_the_provider_s_list(name, checkpoint, tmp_path):
    """And the graph is right on the CPU, where it runs too."""
    from pippin.runtime.ort_engine import OrtEngine

    target = TARGETS[name]
    out = export_folder(checkpoint, tmp_path / "out", weights=None, target=name)
    model = read_model(out)
    left = set(target.left_over(model))
    heavy = {"GroupQueryAttention", "MatMul", "Gemm", "SkipSimplifiedLayerNormalization"}
    assert not left & heavy
    text = (out / "README.md").read_text()
    assert ("has not been run there" in text) == (not target.ran)
    assert all(operator in text for operator in left)
    assert (f"Made for {target.provider}" in text) == (name != "cpu")
    found = OrtEngine.from_folder(out, threads=1).open().verify(random_ids(20))
    tolerance = {"q4": 1.0, "fp16": 2e-2}[target.default_weights]
    assert difference(found, mlx_logits(checkpoint, random_ids(20))) < tolerance


def test_the_mlx_provider_gets_its_form_of_attention(checkpoint, tmp_path):
    for name, packed in (("cpu", True), ("mlx-ep", False)):
        model = read_model(export_folder(checkpoint, tmp_path / name, weights="q4", target=name))
        nodes = [n for n in model.graph.node if n.op_type == "GroupQueryAttention"]
        assert len(nodes) == 3
        assert all((n.input[1] == "") == packed for n in nodes)
        assert ("GroupQueryAttention" in TARGETS["mlx-ep"].left_over(model)) == packed
        kinds = {t.name: t.data_type for t in model.graph.initializer}
        zero_points = [kind for name, kind in kinds.items() if name.endswith(".zero_points")]
        assert zero_points
        assert set(zero_points) == {2}  # uint8


def test_what_the_mlx_provider_leaves_to_the_cpu(tmp_path):
    """8-bit tables and longer inputs of attention."""
    checkpoint = open_checkpoint(
        make_tiny(tmp_path / "tiny", "Mpt", d_model=96, n_heads=6, n_layers=2, max_seq_len=64).path
    )
    model = read_model(export_folder(checkpoint, tmp_path / "out", weights="q4", target="mlx-ep"))
    assert {"GroupQueryAttention", "MatMulNBits"} <= set(TARGETS["mlx-ep"].left_over(model))


@pytest.mark.parametrize(
    ("target", "options", "complaint"),
    [
        ("tpu", {}, "no target 'tpu'; choose cpu, web"),
        ("cuda", {"weights": "q4"}, "CUDAExecutionProvider takes no weights q4; .* choose fp16"),
        ("coreml", {"dialect": "gqa"}, "takes no dialect gqa; for coreml, choose standard"),
        ("webgpu", {"kv": "int8"}, "takes no KV cache int8; for webgpu, choose fp32 or fp16"),
        ("mlx-ep", {"weights": ["q4", "int8"]}, "takes no weights int8; .* choose q4 or fp32"),
    ],
)
def test_refusals(target, options, complaint, checkpoint, tmp_path):
    with pytest.raises(InputError, match=complaint) as raised:
        export_folder(checkpoint, tmp_path / "out", target=target, **options)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_a_cap_in_attention_is_refused_where_it_is_left_out(tmp_path):
    tiny = make_tiny(tmp_path / "tiny", "Gemma2", hidden_size=96, head_dim=16)
    checkpoint = open_checkpoint(tiny.path)
    with pytest.raises(InputError, match="caps its attention's scores"):
        export_folder(checkpoint, tmp_path / "out", weights="fp32", target="webgpu")
    assert export_folder(checkpoint, tmp_path / "out", weights="fp32", target="web").is_dir()


def test_the_command_offers_all_targets():
    option = next(p for p in command.params if p.name == "target")
    assert isinstance(option.type, click.Choice)
    assert tuple(option.type.choices) == tuple(TARGETS)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"kv": "int8"}, "kv is for decoders"),
        ({"target": "webgpu"}, "target is for decoders"),
        ({"sampling": True}, "sampling is for decoders"),
        ({"weights": ["fp32", "q4"]}, "one kind of weights"),
    ],
)
def test_an_encoder_has_none_of_this(options, complaint, tmp_path):
    kind, config = next(iter(ENCODERS.values()))
    stack = make_stack(tmp_path / "encoder", kind, config)
    with pytest.raises(InputError, match=complaint) as raised:
        export_checkpoint(open_checkpoint(stack.path), tmp_path / "out", **options)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()
