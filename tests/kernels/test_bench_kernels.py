"""`pippin bench kernels` and `pippin doctor --kernels`: equal results; how fast decides nothing."""

import json
from dataclasses import replace

import mlx.core as mx
import pytest

from emulator import SKIP_REASON, emulated, find_clang
from pippin.apps import bench_kernels
from pippin.apps.attention_calls import CALLS
from pippin.kernels.dispatch import has_metal
from pippin.kernels.spec import AttentionSpec
from pippin.runtime.errors import InputError
from support.command_line import one_line, run_pippin

SERVED = [call for call in CALLS if call.choice(metal=True, mode="kernels").name != "fallback"]
without_metal = pytest.mark.skipif(has_metal(), reason="this machine has a Metal device")


def shrunk(call):
    """The same features at a size that the emulator does in no time."""
    spec = AttentionSpec(
        8, 2, 64, 0.125, window=call.spec.window and 9, softcap=call.spec.softcap and 2.0
    )
    length = 20 if call.length > 16 else call.length
    batch = min(call.batch, 2)
    return replace(call, spec=spec, length=length, total=48, batch=batch, dtype=mx.float32)


@pytest.mark.skipif(find_clang() is None, reason=SKIP_REASON)
@pytest.mark.parametrize("call", SERVED, ids=lambda call: call.name)
def test_both_sides_compute_the_same(call):
    with emulated(max_threads=256) as report:
        timing = bench_kernels.measure(shrunk(call), rounds=2, chained=1)
    assert timing.difference < 1e-5
    assert timing.case == call.name
    assert timing.ratio.rounds == 2
    assert len(report.launches) == 4  # to compare, to warm up, two rounds
    assert {launch.kernel for launch in report.launches} <= {
        timing.kernel,
        f"quantized_{timing.kernel}",
    }


def test_enough_cases_for_every_feature():
    names = " ".join(call.name for call in SERVED)
    for feature in ("causal", "window", "softcap", "ALiBi", "sinks", "ragged", "4-bit", "8-bit"):
        assert names.count(feature) >= 2


@without_metal
def test_without_metal_it_says_so_and_exits_with_2():
    for options in ((), ("--json",)):
        run = run_pippin("bench", "kernels", *options)
        assert run.code == 2
        assert "no Metal device" in one_line(run)


def test_options_of_a_model_are_refused():
    run = run_pippin("bench", "kernels", "--backend", "mlx")
    assert run.code == 2
    assert "takes no option but --rounds and --json" in one_line(run)
    with pytest.raises(InputError, match="0 rounds"):
        bench_kernels.bench_kernels(rounds=0)


def test_the_table_of_doctor():
    run = run_pippin("doctor", "--kernels")
    head, *rows = run.out.splitlines()
    assert run.code == 0
    assert head.split()[:4] == ["ATTENTION", "HERE", "ON", "METAL"]
    for row, call in zip(rows, CALLS, strict=True):
        assert row.startswith(f"{call.name}  ")
        assert row.endswith(call.choice().reason)


def test_the_json_of_doctor():
    run = run_pippin("doctor", "--kernels", "--json", env={"PIPPIN_ATTENTION": "mlx"})
    served = {each["case"]: each for each in json.loads(run.out)}
    assert list(served) == [call.name for call in CALLS]
    assert {each["here"] for each in served.values()} == {"mlx", "fallback"}
    assert served["decode, softcap 50"]["reason"].startswith("PIPPIN_ATTENTION=mlx")
    assert served["decode, softcap 50"]["on_metal"] == "decode"


def test_a_variable_that_means_nothing_is_refused():
    run = run_pippin("doctor", "--kernels", env={"PIPPIN_ATTENTION": "fast"})
    assert run.code == 2
    assert "PIPPIN_ATTENTION is 'fast'" in one_line(run)
