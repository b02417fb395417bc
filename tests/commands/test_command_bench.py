"""`pippin bench`: every figure is there and possible; how fast it is decides nothing."""

import json
from pathlib import Path

import pytest

from pippin.apps import bench
from pippin.runtime.errors import InputError, PippinError
from support.command_line import make_chat_model, run_pippin


@pytest.fixture(scope="session")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a context that the long measurement fits into."""
    folder = tmp_path_factory.mktemp("models") / "long"
    return make_chat_model(folder, max_position_embeddings=4096)


def test_every_backend_is_measured_by_itself(long_model: Path) -> None:
    run = run_pippin("bench", long_model, "--rounds", 1, "--json")
    document = json.loads(run.out)
    assert run.code == 0
    assert (document["model"], document["rounds"]) == (str(long_model), 1)
    assert [result["backend"] for result in document["backends"]] == ["mlx", "onnx"]
    for result in document["backends"]:
        for name in (
            *("load_seconds", "prefill", "decode_short", "decode_long"),
            *("decode_batch", "batch_ratio"),
        ):
            figure = result[name]
            assert 0 < figure["low"] <= figure["median"] <= figure["high"]
        assert 20 * 2**20 < result["peak_bytes"] < 2**32
        assert result["weight_bytes"] > 0
    limits = document["backends"][1]["limits"]
    assert set(limits) == {"prefill", "decode_short", "decode_long", "decode_batch"}
    for name, limit in limits.items():
        median = document["backends"][1][name]["median"]
        assert limit["share"] == pytest.approx(median / limit["rate"])
    assert limits["decode_long"]["rate"] < limits["decode_short"]["rate"]
    assert document["backends"][0]["limits"] == {}
    assert "mlx: loading, 1 of 1" in run.err


def test_the_table(long_model: Path) -> None:
    run = run_pippin("bench", long_model, "--rounds", 1, "--backend", "mlx")
    head, row = run.out.splitlines()
    assert head.split()[:3] == ["BACKEND", "LOAD", "s"]
    assert row.startswith("mlx ")
    assert row.endswith("MiB")


def test_what_does_not_fit_the_context_is_left_out(model: Path, invoke) -> None:
    result = json.loads(invoke("bench", model, "--rounds", 1, "--backend", "mlx", "--json").stdout)[
        "backends"
    ][0]
    assert result["prefill"] is not None
    assert result["decode_short"] is not None
    assert result["decode_long"] is None
    table = invoke("bench", model, "--rounds", 1, "--backend", "mlx").stdout
    assert " - " in table.splitlines()[1]


def test_an_exported_folder(folder: Path) -> None:
    (result,) = bench.bench(str(folder), rounds=1)
    assert result.backend == "onnx"
    assert result.prefill is not None
    assert result.limits["prefill"].rate > result.prefill.median


def test_options_of_onnx_with_mlx_alone(model: Path) -> None:
    with pytest.raises(InputError, match="--weights is for --backend onnx"):
        bench.bench(str(model), ["mlx"], weights="q4")


def test_what_a_child_refuses_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = bench.Task(str(model / "nowhere"), "mlx", 1)
    with pytest.raises(InputError, match="nowhere"):
        bench._run(task, "load")
    monkeypatch.setattr(bench, "__package__", "no_such_package")
    with pytest.raises(PippinError, match=r"measuring mlx failed: .*no_such_package"):
        bench._run(task, "load")


def test_figures_are_medians() -> None:
    assert bench.figure([3.0, 1.0, 10.0]) == bench.Figure(3.0, 1.0, 10.0, 3)
