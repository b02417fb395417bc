"""`pippin export` and `pippin verify`; a disk that fills up leaves nothing behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.command_line import PIPPIN, one_line, run_pippin


def test_the_folder_is_printed_and_runs(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = run_pippin("export", model, "-o", out, "--weights", "fp32")
    assert (run.code, run.out, run.err) == (0, f"{out}\n", "")
    said = run_pippin("generate", out, "Hi", "--max-tokens", 9)
    wanted = run_pippin("generate", model, "Hi", "--max-tokens", 9, "--backend", "mlx")
    assert said.code == wanted.code == 0
    assert said.out == wanted.out
    verified = run_pippin("verify", out)
    assert verified.code == 0
    assert all(line.startswith("ok  ") for line in verified.out.splitlines())
    checks = json.loads(run_pippin("verify", out, "--json").out)
    assert all(check["ok"] for check in checks)


def test_the_default_output_is_named_after_the_model(model: Path, tmp_path: Path) -> None:
    run = run_pippin("export", model, "--json", cwd=tmp_path)
    assert run.code == 0
    assert json.loads(run.out) == {
        "model": str(model), "path": f"{model.name}-onnx", "weights": "q4", "dialect": "gqa",
    }  # fmt: skip
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == [
        f"{model.name}-onnx"
    ]


def test_an_export_of_ours_is_replaced_when_asked(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run_pippin("export", model, "-o", out).code == 0
    (out / "README.md").write_text("old")
    again = run_pippin("export", model, "-o", out)
    assert str(out) in one_line(again)
    assert again.code == 2
    assert run_pippin("export", model, "-o", out, "--overwrite").code == 0
    assert (out / "README.md").read_text() != "old"


def test_options_reach_the_exporter(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--weights", "fp16", "--dialect", "standard", "--context", 128)
    assert run_pippin("export", model, "-o", out, *options).code == 0
    assert (out / "onnx" / "model_fp16.onnx").is_file()
    run = run_pippin("generate", out, "x" * 120)
    assert "128" in one_line(run)


def test_verify_fails_on_a_damaged_folder(folder: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(folder, tmp_path / "broken"))
    data = next((broken / "onnx").glob("*.onnx_data"))
    os.truncate(data, data.stat().st_size // 2)
    run = run_pippin("verify", broken)
    assert run.code in (1, 2)
    assert "FAILED" in run.out or data.name in run.err
    assert "Traceback" not in run.err


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX limits")
@pytest.mark.parametrize("limit", [0, 10_000, 60_000])
def test_a_file_that_may_not_grow(model: Path, tmp_path: Path, limit: int) -> None:
    import resource

    def restrict() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    before = sorted(tmp_path.iterdir())
    run = run_pippin("export", model, "-o", tmp_path / "out", preexec_fn=restrict)
    assert one_line(run)
    assert run.code == 2
    assert sorted(tmp_path.iterdir()) == before


def _has_namespaces() -> bool:
    if not sys.platform.startswith("linux") or not shutil.which("unshare"):
        return False
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


_ON_SMALL_DISK = """
mount -t tmpfs -o size=$3 tmpfs "$1" && cd "$1" || exit 99
listing=$2
shift 3
"$@"
code=$?
ls -A > "$listing"
exit $code
"""


@pytest.mark.skipif(not _has_namespaces(), reason="needs a mount namespace for a small disk")
@pytest.mark.parametrize("size", ["4k", "64k", "160k", "256k"])
def test_a_full_disk(model: Path, tmp_path: Path, size: str) -> None:
    disk, listing = tmp_path / "disk", tmp_path / "listing"
    disk.mkdir()
    shell = ["unshare", "-rm", "sh", "-c", _ON_SMALL_DISK, "sh", disk, listing, size]
    command = [*PIPPIN, "export", model, "-o", disk / "out", "--weights", "fp32"]
    done = subprocess.run([*map(str, [*shell, *command])], capture_output=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stdout == b""
    assert done.stderr.count(b"\n") == 1
    assert b"space" in done.stderr
    assert listing.read_text() == ""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"]
)
def test_an_export_that_is_stopped_leaves_nothing(
    smollm2: Path, tmp_path: Path, number: int, code: int
) -> None:
    out = tmp_path / "exports" / "out"
    child = subprocess.Popen(
        [*PIPPIN, "export", smollm2, "-o", out], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    while child.poll() is None and not list(tmp_path.glob("exports/.out.*/onnx/*")):
        time.sleep(0.002)
    child.send_signal(number)
    answer, message = child.communicate(timeout=60)
    assert (child.returncode, answer, message.strip()) == (code, b"", b"")
    assert not (tmp_path / "exports").exists()
