"""Hub ids against a hub on loopback that answers what `huggingface_hub` asks."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from pippin.mlx_model.checkpoints import hub
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.mlx_model.checkpoints.hub import HubModel, parse_hub_id
from pippin.mlx_model.checkpoints.store import MANIFEST, list_models, pull, resolve
from pippin.runtime.errors import InputError
from support.servers import COMMIT, FileServer, Resource, add_to_hub, serve

REPO = "org/tiny"
CONFIG = json.dumps({"model_type": "llama"}).encode()
WEIGHTS = save({"a": np.arange(300_000, dtype=np.float32)})
SINGLE = {
    "config.json": CONFIG,
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ x }}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": WEIGHTS,
    "onnx/model.onnx": b"onnx",
    "original/params.json": b"{}",
    "README.md": b"hello",
}
SHARDS = {
    f"model-0000{n}-of-00002.safetensors": save({name: np.full(50_000, n, np.float32)})
    for n, name in ((1, "a"), (2, "b"))
}
INDEX = {"weight_map": dict(zip("ab", SHARDS, strict=True))}
SHARDED = {"config.json": CONFIG, "model.safetensors.index.json": json.dumps(INDEX).encode()}
SHARDED |= SHARDS


@pytest.fixture(autouse=True)
def endpoint(server: FileServer, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


def weight_path(name: str = "model.safetensors") -> str:
    return f"/{REPO}/resolve/{COMMIT}/{name}"


def files_of(path: Path) -> list[str]:
    return sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())


def test_ids() -> None:
    assert parse_hub_id("org/name") == HubModel("org/name")
    assert parse_hub_id("hf:org/na.me-1_2@v1") == HubModel("org/na.me-1_2", "", "v1")
    assert parse_hub_id("org/name@refs/pr/3") == HubModel("org/name", "", "refs/pr/3")
    model = parse_hub_id("org/name/sub/x.Q4.gguf@main")
    assert model == HubModel("org/name", "sub/x.Q4.gguf")
    assert str(model) == "hf:org/name/sub/x.Q4.gguf"
    assert str(HubModel("org/name", "", "v1")) == "hf:org/name@v1"
    for no_id in ("name", "a/b/c", "./a/b", "../a", "./a", "~/a", "a//b", "-a/b", "org/", "a b/c"):
        assert parse_hub_id(no_id) is None


def test_single_file_model(server: FileServer, home: Path) -> None:
    add_to_hub(server, REPO, SINGLE)
    steps: list[tuple[int, int | None]] = []
    path = pull(REPO, lambda *step: steps.append(step))
    wanted = ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    assert files_of(path) == sorted([*wanted, MANIFEST])
    assert all((path / name).read_bytes() == SINGLE[name] for name in wanted)
    total = sum(len(SINGLE[name]) for name in wanted)
    assert steps[-1] == (total, total)
    assert steps == sorted(steps)
    checkpoint = open_checkpoint(path)
    assert checkpoint.load_weights()["a"].shape == (300_000,)
    assert json.loads((path / MANIFEST).read_text())["revision"] == COMMIT
    [model] = list_models()
    assert (model.name, model.source, model.kind) == (REPO, f"hf:{REPO}", "safetensors")
    server.seen.clear()
    assert resolve(REPO, fetch=False) == resolve(f"hf:{REPO}", fetch=True) == path
    assert server.seen == []


def test_settings_of_pooling_come_along(server: FileServer) -> None:
    """sentence-transformers keeps them in folders; a model without them would pool otherwise."""
    settings = {"1_Pooling/config.json": b"{}", "modules.json": b"[]"}
    others = {"2_Dense/model.safetensors": WEIGHTS, "openvino/config.json": b"{}"}
    add_to_hub(server, REPO, SINGLE | settings | others)
    path = pull(REPO)
    files = files_of(path)
    assert settings.keys() <= set(files)
    assert (path / "config.json").read_bytes() == CONFIG
    assert not others.keys() & set(files)


def test_token_is_sent(server: FileServer) -> None:
    add_to_hub(server, REPO, SINGLE)
    pull(REPO)
    assert {seen.headers.get("authorization") for seen in server.seen} == {"Bearer hf_secret"}


def test_token_stays_with_the_hub(server: FileServer) -> None:
    add_to_hub(server, REPO, SINGLE)
    with serve() as cdn:
        cdn.resources["/blob"] = Resource(WEIGHTS)
        server.resources[weight_path()] = Resource(
            b"",
            status=302,
            headers={
                "Location": f"{cdn.url}/blob?signature=s3cret",
                "X-Repo-Commit": COMMIT,
                "X-Linked-Etag": '"0"',
            },
        )
        assert (pull(REPO) / "model.safetensors").read_bytes() == WEIGHTS
        assert cdn.gets("/blob")
        assert "authorization" not in cdn.seen[0].headers
    assert all("authorization" in seen.headers for seen in server.seen)


def test_sharded_model(server: FileServer) -> None:
    add_to_hub(server, REPO, SHARDED)
    path = pull(REPO)
    assert files_of(path) == sorted([*SHARDED, MANIFEST])
    assert set(open_checkpoint(path).load_weights()) == {"a", "b"}


def test_revisions_are_models_of_their_own(server: FileServer) -> None:
    add_to_hub(server, REPO, SINGLE)
    add_to_hub(server, REPO, SHARDED, revision="v2")
    assert pull(REPO) != pull(f"{REPO}@v2")
    assert [model.name for model in list_models()] == [REPO, f"{REPO}@v2"]


def test_one_gguf_of_several(server: FileServer) -> None:
    files = {"a.gguf": b"GGUF a", "sub/b.gguf": b"GGUF b", "config.json": CONFIG}
    add_to_hub(server, REPO, files)
    path = pull(f"{REPO}/sub/b.gguf")
    assert path.name == "b.gguf"
    assert path.read_bytes() == b"GGUF b"
    assert files_of(path.parent) == ["b.gguf", MANIFEST]
    assert list_models()[0].kind == "gguf"
    with pytest.raises(InputError, match=r"has no c.gguf \(it has a.gguf, sub/b.gguf: name one"):
        pull(f"{REPO}/c.gguf")
    with pytest.raises(InputError, match=r"has no safetensors model \(it has a.gguf"):
        pull(REPO)


def test_pickled_weights_are_refused(server: FileServer) -> None:
    add_to_hub(server, REPO, {"config.json": CONFIG, "pytorch_model.bin": b"pickle"})
    with pytest.raises(InputError, match=r"only pickled PyTorch weights; expected .* safetensors"):
        pull(REPO)
    assert server.gets(weight_path("pytorch_model.bin")) == []


def test_cut_pull_looks_like_nothing_and_is_resumed(
    server: FileServer, capfd: pytest.CaptureFixture
) -> None:
    add_to_hub(server, REPO, SINGLE)
    weights = server.resources[weight_path()]
    weights.cuts = [400_000]
    weights.failures = [0, 0, 503, 503]  # HEAD, the GET that is cut, and its retries
    with pytest.raises(InputError, match=r"^127.0.0.1 could not be reached \(HTTP 503\)"):
        pull(REPO)
    assert list_models() == []
    with pytest.raises(InputError, match=r"nor in the store"):
        resolve(REPO, fetch=False)
    server.seen.clear()
    path = pull(REPO)
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    assert sum(seen.sent for seen in server.gets(weight_path())) == len(WEIGHTS) - 400_000
    assert server.gets(weight_path("config.json")) == []  # it was there already
    assert capfd.readouterr() == ("", "")


def test_wrong_bytes_from_the_hub(server: FileServer) -> None:
    add_to_hub(server, REPO, SINGLE)
    server.resources[weight_path()].body = WEIGHTS[:-1] + b"!"
    with pytest.raises(InputError, match=r"/model.safetensors has sha256 \w+, expected"):
        pull(REPO)
    assert list_models() == []
    server.resources[weight_path()].body = WEIGHTS
    assert (pull(REPO) / "model.safetensors").read_bytes() == WEIGHTS


def test_the_repo_changed_between_two_pulls(server: FileServer) -> None:
    add_to_hub(server, REPO, SHARDED)
    last = list(SHARDS)[1]
    server.resources[weight_path(last)].failures = [403] * 99
    with pytest.raises(InputError):
        pull(REPO)
    add_to_hub(server, REPO, SINGLE, commit="f" * 40)
    assert not set(SHARDS) & set(files_of(pull(REPO)))


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (401, "GatedRepo", r"^org/tiny is gated: accept its terms at http.*/org/tiny and set HF_T"),
        (403, "GatedRepo", r"^org/tiny is gated"),
        (404, "RepoNotFound", r"^org/tiny is neither a path here nor a public model on 127.0.0.1"),
        (401, "", r"^127.0.0.1 answered HTTP 401 for org/tiny; set HF_TOKEN to one that may read"),
        (404, "RevisionNotFound", r"^org/tiny has no revision 'main'"),
        (403, "", r"^127.0.0.1 answered HTTP 403 for org/tiny; set HF_TOKEN"),
        (500, "", r"^127.0.0.1 answered HTTP 500 for org/tiny$"),
    ],
)
def test_refusals(server: FileServer, status: int, code: str, message: str) -> None:
    path = f"/api/models/{REPO}/revision/main"
    headers = {"X-Error-Code": code} if code else {}
    server.resources[path] = Resource(b"{}", status=status, headers=headers)
    with pytest.raises(InputError, match=message) as caught:
        pull(REPO)
    assert "\n" not in str(caught.value)
    assert "hf_secret" not in str(caught.value)


def test_gated_file_behind_a_public_listing(server: FileServer) -> None:
    add_to_hub(server, REPO, SINGLE)
    for name in SINGLE:
        server.resources[weight_path(name)] = Resource(
            b"", status=403, headers={"X-Error-Code": "GatedRepo"}
        )
    with pytest.raises(InputError, match=r"^org/tiny is gated"):
        pull(REPO)
    assert list_models() == []


def test_no_hub_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InputError, match=r"^127.0.0.1 could not be reached .*give the path") as e:
        pull(REPO)
    assert "\n" not in str(e.value)


def test_offline_mode(monkeypatch: pytest.MonkeyPatch, server: FileServer) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"HF_HUB_OFFLINE is set: unset it or .*give the path"):
        pull(REPO)
    assert server.seen == []


def test_a_web_page_instead_of_a_hub(server: FileServer) -> None:
    server.resources[f"/api/models/{REPO}/revision/main"] = Resource(b"<html>Log in</html>")
    with pytest.raises(InputError, match=r"does not answer like a hub .*; check HF_ENDPOINT"):
        pull(REPO)


def test_impossible_id() -> None:
    with pytest.raises(InputError, match=r"'org/a--b' is not a hub's way to name a model"):
        pull("org/a--b")


def test_full_disk(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    add_to_hub(server, REPO, SINGLE)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"no space left on the disk"):
        pull(REPO)
    usage = hub.shutil.disk_usage("/")._replace(free=1234)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(InputError, match=r"needs 1,2\d\d,\d\d\d more bytes and its disk has 1,234"):
        pull(REPO)
