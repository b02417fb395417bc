"""What other programs need, installed once into the user's cache: one directory a consumer.

A directory appears under its name when it is complete, and is used again as long as the pinned
versions stay the same.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import platformdirs

from pippin.mlx_model.checkpoints.lock import locked

# The one package known to carry onnxruntime's C headers; of its 143 MB only these are kept.
_HEADERS = "com.github.asus4.onnxruntime@0.4.9"
_HEADERS_UNDER = "ios-arm64/onnxruntime.framework/Headers/"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_MAC_BROWSER = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
_OLDEST_NODE = (20, 11)


class Missing(Exception):
    """Something that this machine lacks, and why it cannot be had."""


def python_with(name: str, requirements: Path) -> str:
    """The Python of an environment with the packages of a requirements file."""

    def install(folder: Path) -> None:
        _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        python = str(folder / "bin" / "python")
        options = ["--quiet", "--disable-pip-version-check", "--requirement", str(requirements)]
        _run([sys.executable, "-m", "pip", "--python", python, "install", *options])

    key = f"{sys.version} {requirements.read_text()}"
    return str(_installed(name, key, install) / "bin" / "python")


def node_modules(name: str, package: Path) -> Path:
    """The directory node_modules of a package.json's dependencies."""
    node(), _program("npm")

    def install(folder: Path) -> None:
        folder.mkdir()
        shutil.copy(package, folder / "package.json")
        # No scripts: those of onnxruntime-node fetch CUDA's libraries from elsewhere.
        _run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder)

    key = f"{platform.machine()} {package.read_text()}"
    return _installed(name, key, install) / "node_modules"


def node() -> str:
    """Node, if it is new enough."""
    path = _program("node")
    version = _run([path, "--version"]).strip()
    if tuple(int(part) for part in version.lstrip("v").split(".")[:2]) < _OLDEST_NODE:
        raise Missing(f"node is {version}, older than {'.'.join(map(str, _OLDEST_NODE))}")
    return path


def browser() -> str:
    """Chromium, which tests/consumers/install-programs installs on Debian."""
    for name in _BROWSERS:
        if path := shutil.which(name):
            return path
    if Path(_MAC_BROWSER).exists():
        return _MAC_BROWSER
    raise Missing("there is no Chromium (Debian: chromium)")


def c_program(source: Path) -> str:
    """A C program, compiled against onnxruntime's C API and the library that Pippin runs on."""
    compiler = _program("cc")
    headers = _installed("c-headers", _HEADERS, _fetch_headers)
    library = _library()
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-I", str(headers)]

    def build(folder: Path) -> None:
        folder.mkdir()
        for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
            (folder / name).symlink_to(library)
        link = ["-L", str(folder), "-lonnxruntime", "-Wl,-rpath,$ORIGIN"]
        _run([compiler, *flags, str(source), "-o", str(folder / "program"), *link])

    key = f"{source.read_text()} {library} {flags}"
    return str(_installed(f"c-{source.stem}", key, build) / "program")


def _library() -> Path:
    found = sorted((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    if not found:
        raise Missing("this onnxruntime wheel has no libonnxruntime.so")
    return found[0]


def _fetch_headers(folder: Path) -> None:
    folder.mkdir()
    archive = _run([_program("npm"), "pack", "--silent", _HEADERS], cwd=folder).split()[-1]
    with tarfile.open(folder / archive) as tar:
        for member in tar:
            if _HEADERS_UNDER in member.name and member.name.endswith(".h"):
                (folder / Path(member.name).name).write_bytes(tar.extractfile(member).read())
    (folder / archive).unlink()
    if not (folder / "onnxruntime_c_api.h").exists():
        raise Missing(f"{_HEADERS} holds no onnxruntime_c_api.h")


def _installed(name: str, key: str, install: Callable[[Path], None]) -> Path:
    """The directory of what `install` made for this key; older ones are removed."""
    home = Path(platformdirs.user_cache_dir("pippin")) / "consumers" / name
    target = home / hashlib.sha256(key.encode()).hexdigest()[:12]
    with locked(home / "lock"):
        if not target.exists():
            for old in home.iterdir():
                if old.is_dir():
                    shutil.rmtree(old)
            partial = home / "partial"
            install(partial)
            partial.rename(target)
    return target


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise Missing(f"there is no {name}")
    return path


def _run(command: list[str], cwd: Path | None = None) -> str:
    environment = os.environ | {"ONNXRUNTIME_NODE_INSTALL": "skip"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        errors = [line for line in lines if "error" in line.lower()] or lines
        raise Missing(f"{' '.join(command[:4])} … failed: {errors[-1] if errors else ''}")
    return done.stdout
