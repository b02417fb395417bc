"""Which onnxruntime a graph asks for, and that an older one is refused."""

from dataclasses import replace

import onnxruntime as ort
import pytest

from pippin.export.folder import export_folder
from pippin.export.requirements import minimum_onnxruntime
from pippin.export.settings import Settings
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.families import read_family
from pippin.mlx_model.positions import Alibi, RopeConfig
from pippin.runtime.errors import InputError
from pippin.runtime.ort_engine import OrtEngine
from support.tiny import make_tiny

PLAIN = read_family(
    {
        "model_type": "llama",
        "vocab_size": 97,
        "hidden_size": 64,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
).config


def with_block(**changes):
    """The plain model, its last layer changed."""
    return replace(PLAIN, blocks=(PLAIN.blocks[0], replace(PLAIN.blocks[1], **changes)))


LONGROPE = with_block(position=RopeConfig(base=500.0, dims=16, switch=64))


@pytest.mark.parametrize(
    ("config", "settings", "minimum"),
    [
        (PLAIN, Settings("fp32"), "1.20"),
        (PLAIN, Settings("q4"), "1.22"),
        (PLAIN, Settings("fp32", "standard"), "1.23"),
        (with_block(position=Alibi((0.5,) * 4)), Settings("fp32"), "1.22"),
        (LONGROPE, Settings("fp32", context=65), "1.22"),
        (LONGROPE, Settings("fp32", context=64), "1.20"),
        (replace(PLAIN, sinks=True), Settings("fp32"), "1.23"),
        (PLAIN, Settings("q4", kv="int8"), "1.27"),
        (with_block(window=16), Settings("fp32"), "1.24"),
        (with_block(window=16), Settings("fp32", "standard"), "1.23"),
        (replace(PLAIN, softcap=30.0), Settings("fp32"), "1.20"),
        (replace(PLAIN, softcap=30.0), Settings("fp32", "standard"), "1.27"),
    ],
)
def test_a_graph_asks_for_the_release_that_computes_it_right(config, settings, minimum):
    assert minimum_onnxruntime(config, settings) == minimum


@pytest.mark.parametrize(("release", "refused"), [("1.23.2", True), ("1.24.0", False)])
def test_an_older_release_is_refused(release, refused, tmp_path, monkeypatch):
    tiny = make_tiny(tmp_path / "checkpoint", "Mistral", sliding_window=16, head_dim=16)
    folder = export_folder(open_checkpoint(tiny.path), tmp_path / "out", weights="fp32")
    assert "| 1.24 or newer |" in (folder / "README.md").read_text()
    monkeypatch.setattr(ort, "__version__", release)
    if not refused:
        OrtEngine.from_folder(folder)
        return
    with pytest.raises(InputError, match=r"1\.24 .*1\.23\.2") as refusal:
        OrtEngine.from_folder(folder)
    assert "\n" not in str(refusal.value)
