"""`pippin bench machine`: the rates are possible ones, and the machine is the one we are on."""

import json
import time
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from pippin.apps import bench_machine, processor
from pippin.apps.bench_machine import Load, measure_machine
from pippin.cli import cli
from pippin.runtime.errors import InputError

SMALL = 2**20  # bytes
NAMES = ["memory read", "fp32 multiply", "int8 multiply", "4-bit multiply", "4-bit, one row"]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of one call, products of small matrices, and no GPU."""
    monkeypatch.setattr(bench_machine, "_ROUND", 0.0)
    monkeypatch.setattr(bench_machine, "_SIZE", 128)
    monkeypatch.setattr(bench_machine, "_beyond_caches", lambda: SMALL)
    monkeypatch.setattr(bench_machine, "_has_gpu", lambda: False)


def test_every_rate() -> None:
    told: list[str] = []
    machine = measure_machine(1, rounds=2, report=told.append)
    assert [rate.name for rate in machine.rates] == NAMES
    assert told == [f"onnx: {name}" for name in NAMES]
    assert machine.threads == 1
    for rate in machine.rates:
        assert 0 < rate.figure.low <= rate.figure.median <= rate.figure.high < 1e6
        assert rate.figure.rounds == 2
        assert machine.rate(rate.name) == 1e9 * rate.figure.median
    assert machine.rate("memory read", "mlx") is None


def test_a_rate_is_work_by_time() -> None:
    load = Load("onnx", "sleep", "GB/s", 5e6, lambda: time.sleep(0.01))
    figure = bench_machine._measure(load, 3)
    assert 0.1 < figure.median < 0.5


@pytest.mark.parametrize("name", ["fp32 multiply", "int8 multiply", "4-bit multiply"])
def test_the_graph_computes_such_a_product(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The load is what it says: as many operations as the shapes of its graph have."""
    made: list[Any] = []
    session = bench_machine._session

    def keep(*arguments: Any) -> Any:
        made.append(session(*arguments))
        return made[-1]

    monkeypatch.setattr(bench_machine, "_session", keep)
    load = bench_machine._product(name, 1)
    (output,) = load.run()
    assert output.shape == (256, 128)
    assert np.abs(output).max() > 0
    assert load.work == 2 * 256 * 128 * 128
    assert [arg.name for arg in made[0].get_inputs()] == ["x"], "the weights are constant"


def test_one_row_goes_through_different_weights() -> None:
    """onnxruntime keeps equal packed weights once: a cache would hold them."""
    load = bench_machine._one_row(1, SMALL)
    (row,) = load.run()
    assert np.isfinite(row).all()
    assert load.work >= SMALL
    random = np.random.default_rng(0)
    first, second = (bench_machine._packed(random, 128, 128) for _ in range(2))
    assert (first != second).any()


def test_the_text_and_the_document() -> None:
    text = CliRunner().invoke(cli, ["bench", "machine", "--rounds", "1", "--threads", "1"])
    assert text.exit_code == 0
    first, second, *table = text.stdout.splitlines()
    assert first.startswith(processor.processor_name())
    assert first.endswith("1 threads used")
    assert second.startswith("instruction sets: ")
    assert len(table) == 1 + len(NAMES)
    answer = CliRunner().invoke(cli, ["bench", "machine", "--rounds", "1", "--json"])
    document = json.loads(answer.stdout)
    assert [rate["name"] for rate in document["rates"]] == NAMES
    assert document["rounds"] == 1


@pytest.mark.parametrize("options", [["--backend", "onnx"], ["--weights", "q4"], ["--offline"]])
def test_options_that_need_a_model(options: list[str]) -> None:
    outcome = CliRunner().invoke(cli, ["bench", "machine", *options])
    assert outcome.exit_code == 2
    assert "bench machine takes no option but" in outcome.stderr


def test_no_rounds() -> None:
    with pytest.raises(InputError, match="0 rounds"):
        measure_machine(rounds=0)


def test_instruction_sets_are_those_that_numpy_finds() -> None:
    from numpy._core._multiarray_umath import __cpu_features__ as found

    ours = processor.instruction_sets()
    names = {"AVX2": "AVX2", "AVX512F": "AVX-512", "NEON": "NEON", "ASIMDDP": "DotProd"}
    for theirs, name in names.items():
        assert found.get(theirs, False) == (name in ours)


def test_the_largest_cache() -> None:
    assert 2**18 <= processor.last_cache_bytes() <= 2**31


def test_loads_of_mlx() -> None:
    """Here on the CPU, with small arrays: what they compute has the shape that the work says."""
    mlx = pytest.importorskip("pippin.apps.bench_machine_mlx")
    import mlx.core as mx

    for load in (
        mlx.read(SMALL),
        mlx.product("fp16 multiply", mx.float16, rows=4, size=64),
        mlx.packed_product("4-bit multiply", 4, 1, size=64),
        mlx.packed_product("4-bit, one row", 1, 3, size=64),
    ):
        load.run()
        assert load.work > 0
    assert mlx.product("x", mx.float32, rows=4, size=64).work == 2 * 4 * 64 * 64
    # 4 bits a weight, and for every 64 a scale and a bias in half precision
    assert mlx.packed_product("x", 1, 3, size=64).work == 3 * 64 * 64 * (4 + 32 / 64) / 8
