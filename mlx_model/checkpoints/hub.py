"""Models from a Hugging Face hub, through `huggingface_hub`.

HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE mean what they mean there.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from ...runtime.errors import InputError
from .download import TIMEOUT, Progress, download, require_space, unreachable

DEFAULT_ENDPOINT = "https://huggingface.co"
# sentence-transformers keeps the settings of its modules so: 1_Pooling/config.json
_MODULE = re.compile(r"\d+_\w+/config\.json")
_SUFFIXES = {".safetensors", ".json", ".jinja", ".model"}
_NETWORK_LIBRARIES = {"httpx", "httpx2", "huggingface_hub"}
_ELSEWHERE = (
    "fetch its *.safetensors, *.json and *.jinja (or a .gguf) elsewhere and give the path of the "
    "directory (or file)"
)
_ID = re.compile(r"(?:hf:)?([\w.-]+/[\w.-]+)(?:/([^@]+\.gguf))?(?:@(.+))?")


@dataclass(frozen=True)
class HubModel:
    """`org/name[/file.gguf][@revision]` on a hub."""

    repo: str
    file: str = ""  # one .gguf in it; "": the safetensors checkpoint
    revision: str = "main"

    def __str__(self) -> str:
        file = f"/{self.file}" if self.file else ""
        return f"hf:{self.repo}{file}" + ("" if self.revision == "main" else f"@{self.revision}")


def parse_hub_id(text: str) -> HubModel | None:
    """Read `org/name[/file.gguf][@revision]`, with or without `hf:` before it; None if it isn't."""
    if not (match := _ID.fullmatch(text)) or match[1].startswith((".", "-")):
        return None
    return HubModel(match[1], match[2] or "", match[3] or "main")


def fetch_model(
    model: HubModel, folder: Path, *, progress: Progress | None = None
) -> tuple[str, dict[str, str]]:
    """Put the model's files into `folder`; a later call goes on where this one was interrupted.

    Returns the commit, and the sha256 that the hub has for the large files. Raises InputError:
    hub unreachable, no such model, file or revision, no access, nothing in it that can be read,
    disk full.
    """
    from huggingface_hub import HfApi

    endpoint = os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT
    try:
        with _quiet():
            api = HfApi(endpoint=endpoint, library_name="pippin")
            info = api.model_info(
                model.repo, revision=model.revision, files_metadata=True, timeout=TIMEOUT
            )
            chosen = _choose(model, {s.rfilename: s for s in info.siblings or []})
            with _commit_in(folder, info.sha):
                _fetch_files(api, info, chosen, folder, progress)
    except InputError:
        raise
    except Exception as error:
        if message := _explain(error, model, endpoint):
            raise InputError(message) from error
        raise
    return info.sha, {_local_name(s): s.lfs.sha256 for s in chosen if s.lfs is not None}


@contextmanager
def _commit_in(folder: Path, commit: str) -> Iterator[None]:
    """Start afresh when the folder has files of another commit; note this one until all is done."""
    note = folder / ".commit"
    if not note.exists() or note.read_text("utf-8") != commit:
        shutil.rmtree(folder)
        folder.mkdir()
        note.write_text(commit, "utf-8")
    yield
    note.unlink()


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings of `huggingface_hub` on stderr: what matters is raised."""
    from huggingface_hub.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _choose(model: HubModel, files: dict[str, Any]) -> list[Any]:
    if model.file:
        if model.file not in files:
            raise InputError(f"{model.repo} has no {model.file}{_ggufs(files)}")
        return [files[model.file]]
    names = [name for name in files if "/" not in name and Path(name).suffix in _SUFFIXES]
    names += [name for name in files if _MODULE.fullmatch(name)]
    weights = [name for name in names if name.endswith(".safetensors")]
    if not weights or "config.json" not in files:
        pickled = any(name.endswith((".bin", ".pth")) for name in files)
        why = "only pickled PyTorch weights" if pickled and not weights else "no safetensors model"
        raise InputError(f"{model.repo} has {why}{_ggufs(files)}; expected one with safetensors")
    # Mistral's own copy of the same weights, beside Hugging Face's
    own = {name for name in weights if name.startswith("consolidated")}
    drop = own if len(own) < len(weights) else set()
    return [files[name] for name in names if name not in drop]


def _ggufs(files: dict[str, Any]) -> str:
    ggufs = [name for name in files if name.endswith(".gguf")]
    return f" (it has {', '.join(ggufs[:3])}: name one after the id)" if ggufs else ""


def _fetch_files(
    api: Any, info: Any, files: list[Any], folder: Path, progress: Progress | None
) -> None:
    """`huggingface_hub` says where the bytes are; its own download does not resume after an end."""
    from huggingface_hub import get_token, hf_hub_url

    missing = [file for file in files if not (folder / _local_name(file)).exists()]
    require_space(folder, sum(file.size or 0 for file in missing))
    total = sum(file.size or 0 for file in files)
    done = total - sum(file.size or 0 for file in missing)
    token = get_token()
    for file in missing:
        target = folder / _local_name(file)
        target.parent.mkdir(exist_ok=True)
        url = hf_hub_url(info.id, file.rfilename, revision=info.sha, endpoint=api.endpoint)
        place = api.get_hf_file_metadata(url=url, timeout=TIMEOUT).location
        ours = urlsplit(place).netloc in {urlsplit(api.endpoint).netloc, "huggingface.co"}
        download(
            place,
            target,
            sha256=file.lfs.sha256 if file.lfs is not None else None,
            authorization=f"Bearer {token}" if token and ours else "",
            progress=_shifted(progress, done, total),
            remedy=_ELSEWHERE,
        )
        done += file.size or 0


def _local_name(file: Any) -> str:
    """Files lie flat in the store, a GGUF too; only modules' settings stay in their folders."""
    if _MODULE.fullmatch(file.rfilename):
        return file.rfilename
    return PurePosixPath(file.rfilename).name


def _shifted(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Progress of one file as progress of all: `before` bytes are there already."""
    if progress is None:
        return None
    return lambda done, _: progress(before + done, total)


def _explain(error: Exception, model: HubModel, endpoint: str) -> str:
    """One line for what `huggingface_hub` raised; "" for what it is not known to raise."""
    from huggingface_hub import errors

    host = urlsplit(endpoint).hostname
    messages: list[tuple[type, str]] = [
        (
            errors.GatedRepoError,
            f"{model.repo} is gated: accept its terms at {endpoint}/{model.repo} and set HF_TOKEN",
        ),
        (errors.RevisionNotFoundError, f"{model.repo} has no revision {model.revision!r}"),
        (
            errors.RepositoryNotFoundError,
            f"{model.repo} is neither a path here nor a public model on {host} (if it is private "
            "or gated there, set HF_TOKEN)",
        ),
        (
            errors.OfflineModeIsEnabled,
            f"{model.repo} is not in the store and HF_HUB_OFFLINE is set: unset it or {_ELSEWHERE}",
        ),
        (errors.HFValidationError, f"{model.repo!r} is not a hub's way to name a model"),
    ]
    for kind, message in messages:
        if isinstance(error, kind):
            return message
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        hint = "; set HF_TOKEN to one that may read it" if status in {401, 403} else ""
        return f"{host} answered HTTP {status} for {model.repo}{hint}"
    if type(error).__module__.partition(".")[0] in _NETWORK_LIBRARIES:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return str(unreachable(endpoint, reason, _ELSEWHERE))
    if isinstance(error, ValueError):  # a page where JSON was due
        return f"{endpoint} does not answer like a hub ({error}); check HF_ENDPOINT"
    return ""
