"""`pippin doctor`."""

import json
import os
from importlib.metadata import version
from pathlib import Path

import pytest

from pippin.apps import doctor
from support.command_line import run_pippin


def test_what_works_is_ok(home: Path) -> None:
    run = run_pippin("doctor", "--json")
    findings = {finding["name"]: finding for finding in json.loads(run.out)}
    assert run.code == 0
    assert all(finding["ok"] for finding in findings.values())
    assert findings["onnxruntime"]["value"] == version("onnxruntime")
    assert "CPUExecutionProvider" in findings["onnxruntime providers"]["value"]
    assert findings["store"]["value"].startswith(f"{home}, ")
    assert findings["models"]["value"].startswith("none")


def test_each_finding_is_a_line() -> None:
    run = run_pippin("doctor")
    assert run.code == 0
    assert all(line.startswith("ok  ") for line in run.out.splitlines())


def test_a_store_that_cannot_be_written_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = run_pippin("doctor", env={"PIPPIN_HOME": str(tmp_path / "file" / "home")})
    assert run.code == 1
    bad = [line for line in run.out.splitlines() if line.startswith("BAD")]
    assert [line.split()[1] for line in bad] == ["store"]


def test_a_missing_mlx_is_no_fault_and_a_missing_onnxruntime_is(tmp_path: Path) -> None:
    for package in ("mlx", "onnxruntime"):
        folder = tmp_path / package
        folder.mkdir()
        (folder / f"{package}.py").write_text(f"raise ImportError('no {package} here')")
    run = run_pippin("doctor", env={"PYTHONPATH": str(tmp_path / "mlx")})
    line = next(line for line in run.out.splitlines() if "mlx devices" in line)
    assert line.startswith("ok ")
    assert line.endswith("cannot be imported: no mlx here")
    assert run.code == 0
    run = run_pippin("doctor", env={"PYTHONPATH": str(tmp_path / "onnxruntime")})
    assert "cannot be imported: no onnxruntime here" in run.out
    assert run.code == 1


@pytest.mark.skipif(os.name == "nt", reason="POSIX")
def test_little_space_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 2**29})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    store = next(finding for finding in doctor.examine() if finding.name == "store")
    assert store.value.endswith("0.5 GiB free, which is little")
    assert store.ok
