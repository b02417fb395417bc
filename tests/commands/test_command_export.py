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
    checks, _, consumers = verified.out.partition("\n\n")
    assert all(line.startswith("ok  ") for line in checks.splitlines())
    # optimum takes D for hidden_size / heads, which is another number in this model
    assert [line for line in consumers.splitlines()[1:] if "  yes" not in line] == [
        "optimum-onnx 0.1              no     its rule for llama gives the caches D = 8, "
        "the graph has 16"
    ]
    report = json.loads(run_pippin("verify", out, "--json").out)
    assert all(check["ok"] for check in report["checks"])
    assert all(v["works"] == (not v["reasons"]) for v in report["consumers"])


def test_the_default_output_is_named_after_the_model(model: Path, tmp_path: Path) -> None:
    run = run_pippin("export", model, "--json", cwd=tmp_path)
    assert run.code == 0
    assert json.loads(run.out) == {
        "model": str(model), "path": f"{model.name}-onnx", "weights": ["q4"], "dialect": "gqa",
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


def test_several_weights_an_int8_cache_and_a_sampling_head(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--weights", "q4,fp32", "--kv", "int8", "--embed-sampling", "--json")
    run = run_pippin("export", model, "-o", out, *options)
    assert run.code == 0
    assert json.loads(run.out)["weights"] == ["fp32", "q4"]
    assert sorted(file.name for file in (out / "onnx").glob("*.onnx")) == [
        "model.onnx",
        "model_q4.onnx",
    ]
    for weights in ("q4", "fp32"):
        said = run_pippin("generate", out, "Hi", "--max-tokens", 5, "--weights", weights)
        assert (said.code, said.err) == (0, "")
    verified = run_pippin("verify", out)
    assert verified.code == 0
    assert "INT8" in verified.out
    assert "`top_ids`" in (out / "README.md").read_text()


def test_a_target_chooses_weights_and_dialect(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = run_pippin("export", model, "-o", out, "--for", "coreml", "--json")
    assert run.code == 0
    report = json.loads(run.out)
    assert (report["weights"], report["dialect"]) == (["fp16"], "standard")
    assert "CoreMLExecutionProvider" in (out / "README.md").read_text()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--weights", "q4,q5"), "'q5' is not one of fp32, fp16, q4, int8"),
        (("--weights", ""), "'' is not one of"),
        (("--kv", "fp16"), "in fp32 or int8, not in fp16"),
        (("--kv", "int8", "--dialect", "standard"), "no int8 KV cache"),
        (("--for", "cuda", "--weights", "q4"), "choose fp16"),
    ],
)
def test_choices_that_do_not_fit(
    options: tuple[str, ...], complaint: str, model: Path, tmp_path: Path
) -> None:
    run = run_pippin("export", model, "-o", tmp_path / "out", *options)
    assert run.code == 2
    assert complaint in run.err
    assert not (tmp_path / "out").exists()


def test_verify_fails_on_a_damaged_folder(folder: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(folder, tmp_path / "broken"))
    data = next((broken / "onnx").glob("*.onnx_data"))
    os.truncate(data, data.stat().st_size // 2)
    run = run_pippin("verify", broken)
    assert (run.code, run.err) == (2, "")
    assert data.name in next(line for line in run.out.splitlines() if line.startswith("FAILED"))


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
