"""One virtual environment for each peer, in Pippin's store, so that ours stays clean."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from pippin.mlx_model.checkpoints import store
from pippin.runtime.errors import PippinError


@dataclass(frozen=True)
class Peer:
    """A program that Pippin is compared with."""

    name: str
    requirements: tuple[str, ...]  # pinned
    worker: str  # the file beside this one that runs in the peer's environment
    build: str = ""  # CMAKE_ARGS where pip has to compile it


def mlx_lm() -> Peer:
    """On the MLX that Pippin runs on here."""
    mlx = "mlx" if sys.platform == "darwin" else "mlx[cpu]"
    return Peer("mlx-lm", ("mlx-lm==0.32.2", f"{mlx}=={version('mlx')}"), "worker_mlx_lm.py")


def known_peers() -> dict[str, Peer]:
    """By name; onnxruntime-genai gets the onnxruntime that Pippin runs on here."""
    onnxruntime, onnx = (f"{name}=={version(name)}" for name in ("onnxruntime", "onnx"))
    peers = (
        # -DGGML_NATIVE: all that this CPU can do, whatever the environment's build settings
        Peer("llama.cpp", ("llama-cpp-python==0.3.36",), "worker_llama_cpp.py", "-DGGML_NATIVE=ON"),
        # onnx and onnx-ir are what its files are made with (make_rounded.py)
        Peer(
            "onnxruntime-genai",
            ("onnxruntime-genai==0.18.0", onnxruntime, onnx, "onnx-ir==1.1.0"),
            "worker_genai.py",
        ),
        Peer("openvino-genai", ("openvino-genai==2026.4.1.0",), "worker_openvino.py"),
    )
    return {peer.name: peer for peer in peers}


def ensure_installed(peer: Peer, note: Callable[[str], None]) -> str:
    """The path of a Python that has `peer`; installs it the first time.

    Raises PippinError, with pip's own reason, where it cannot be installed.
    """
    folder = store.home() / "peers" / peer.name
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    mark = folder / "installed.txt"  # written last: without it the environment is made anew
    content = "\n".join((sys.version, *peer.requirements, peer.build))
    if mark.is_file() and mark.read_text() == content:
        return str(python)
    note(f"installing {' '.join(peer.requirements)} (compiling may take minutes) ...")
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    _install(peer, str(python), folder / "pip.log")
    mark.write_text(content)
    return str(python)


def _install(peer: Peer, python: str, log: Path) -> None:
    command = [python, "-m", "pip", "install", *peer.requirements]
    environment = os.environ | ({"CMAKE_ARGS": peer.build} if peer.build else {})
    with log.open("w") as out:
        done = subprocess.run(command, stdout=out, stderr=out, env=environment, check=False)
    if done.returncode != 0:
        lines = log.read_text(errors="replace").splitlines()
        errors = [line.strip() for line in lines if "error" in line.lower()] or lines[-1:]
        raise PippinError(f"pip failed: {' '.join(errors[-1:])} (all of it: {log})")
