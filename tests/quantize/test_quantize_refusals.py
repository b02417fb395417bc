"""What cannot be quantized is refused in one line, and nothing half-written stays."""

import contextlib
import errno
import json

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.quantize import quantize_checkpoint
from pippin.mlx_model.quantize_plan import parse_rule
from pippin.mlx_model.quantized_layers import Format
from pippin.runtime.errors import InputError


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bits": 7}, "7-bit affine weights in groups of 64 were asked for; MLX has 2, 3, 4"),
        ({"group_size": 48}, "groups of 48 were asked for.* groups of 32, 64, 128"),
        ({"mode": "mxfp6"}, "no mode 'mxfp6'; choose affine, mxfp4, nvfp4, mxfp8"),
        ({"mode": "nvfp4", "group_size": 32}, "nvfp4 has 4 bits in groups of 16"),
        ({"mode": "mxfp8", "bits": 4}, "mxfp8 has 8 bits in groups of 32"),
        ({"recipe": "mixed_1_2"}, "no recipe 'mixed_1_2'; choose mixed_2_6"),
        ({"recipe": "mixed_3_6", "bits": 4}, "sets the bits.* leave out 4 bits"),
        ({"recipe": "mixed_3_6", "mode": "mxfp4"}, "leave out mode mxfp4"),
        ({"rules": ["*zz=4"]}, r"no layer matches '\*zz'; the layers are named like 'model\."),
        ({"rules": ["lm_head"]}, "'lm_head' does not read PATTERN=BITS"),
        ({"rules": ["lm_head=4:"]}, "does not read"),
        ({"rules": ["=4"]}, "does not read"),
        ({"rules": ["lm_head=7"]}, "7-bit affine"),
        ({"rules": ["lm_head=4:16"]}, "groups of 16"),
        ({"rules": ["*=float"]}, "no layer would be quantized"),
    ],
)
def test_settings_that_mean_nothing(options, said, checkpoint, tmp_path):
    with pytest.raises(InputError, match=said) as error:
        quantize_checkpoint(checkpoint, tmp_path / "out", **options)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


@given(st.text(max_size=20) | st.from_regex(r"\*?[a-z_]*=(\d{1,3}(:\d{1,4})?|float|mxfp4|x)"))
def test_any_rule_is_read_or_refused(text):
    for base in (Format(4, 64), Format(4, 16, "nvfp4")):
        with contextlib.suppress(InputError):
            rule = parse_rule(text, base)
            assert text.startswith(f"{rule.pattern}=")
            assert rule.format is None or rule.format.bits in (2, 3, 4, 5, 6, 8)


def test_a_pattern_may_have_an_equals_sign():
    assert parse_rule("a=b=4", Format()).pattern == "a=b"


def test_a_quantized_checkpoint(checkpoint, tmp_path):
    four = quantize_checkpoint(checkpoint, tmp_path / "four").path
    with pytest.raises(InputError, match=r"is quantized already \(4-bit affine .*--requantize"):
        quantize_checkpoint(open_checkpoint(four), tmp_path / "again", bits=3)
    assert not (tmp_path / "again").exists()


def test_what_is_overwritten(checkpoint, tmp_path):
    out = tmp_path / "out"
    quantize_checkpoint(checkpoint, out, bits=4)
    with pytest.raises(InputError, match="out exists; allow overwriting it"):
        quantize_checkpoint(checkpoint, out, bits=3)
    quantize_checkpoint(checkpoint, out, bits=3, overwrite=True)
    assert json.loads((out / "config.json").read_text())["quantization"]["bits"] == 3
    with pytest.raises(InputError, match="exists and no quantization wrote it"):
        quantize_checkpoint(checkpoint, checkpoint.path, overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


def test_an_interruption_leaves_nothing(checkpoint, tmp_path):
    def interrupt(done, total):
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(checkpoint, tmp_path / "new" / "out", progress=interrupt)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("free", "said"), [(0, "no space left"), (10**12, "cannot write")])
def test_a_disk_that_cannot_be_written(free, said, checkpoint, tmp_path, monkeypatch):
    """The folder that was there before is still there."""
    out = tmp_path / "out"
    quantize_checkpoint(checkpoint, out, bits=4)

    def fail(path, arrays, metadata):
        raise RuntimeError("[write] Unable to write")

    monkeypatch.setattr(mx, "save_safetensors", fail)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": free}))
    with pytest.raises(InputError, match=said) as error:
        quantize_checkpoint(checkpoint, out, bits=3, overwrite=True)
    assert error.value.__cause__.errno in (errno.ENOSPC, errno.EIO)
    assert json.loads((out / "config.json").read_text())["quantization"]["bits"] == 4
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


def test_what_cannot_be_read_back_is_not_kept(checkpoint, tmp_path, monkeypatch):
    """A family that turns layers, as GPT-2's: quantized along the wrong axis they are noise."""
    from pippin.mlx_model.families import llama
    from pippin.mlx_model.families.common.weights import transpose

    turned = r".*\.(o_proj|down_proj)"
    source = tmp_path / "source"
    source.mkdir()
    weights = transpose(dict(mx.load(str(checkpoint.path / "model.safetensors"))), turned)
    mx.save_safetensors(str(source / "model.safetensors"), weights)
    (source / "config.json").write_text(json.dumps(checkpoint.config))
    monkeypatch.setattr(llama, "convert", lambda w, _: transpose(w, turned), raising=False)
    with pytest.raises(InputError, match=r"(o|down)_proj was quantized as \[in, out\]"):
        quantize_checkpoint(open_checkpoint(source), tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"source"}
