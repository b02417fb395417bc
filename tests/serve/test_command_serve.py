"""`pippin serve` as a process: its address, its options, and its end."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx
from openai import OpenAI

from pippin.apps.models import Model
from pippin.runtime.sampling import SamplingParams
from support.command_line import PIPPIN, one_line, run_pippin
from support.serving import Served

TURN = [{"role": "user", "content": "Hi"}]


@contextmanager
def running(folder: Path, *args: object, **env: str) -> Iterator[tuple[str, subprocess.Popen]]:
    """The server's address and process."""
    command = [*PIPPIN, "serve", str(folder), "--port", "0", "--name", "tiny", *map(str, args)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | env
    )
    try:
        yield process.stdout.readline().strip(), process
    finally:
        process.kill()
        process.communicate()


def test_it_serves_and_ends_with_sigterm(tiny_folder: Path, tiny: Model) -> None:
    with running(tiny_folder, "--threads", 1) as (url, process):
        client = OpenAI(base_url=f"{url}/v1", api_key="x")
        done = client.chat.completions.create(model="tiny", messages=TURN, max_tokens=5)
        wanted = tiny.generator.generate(TURN, SamplingParams(max_tokens=5)).text
        assert done.choices[0].message.content == wanted
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")


def test_sigterm_under_load(tiny_folder: Path) -> None:
    body = {"model": "tiny", "messages": TURN, "stream": True, "ignore_eos": True}
    body["max_tokens"] = 1500
    with running(tiny_folder, "--threads", 1, "--shutdown-timeout", 0.5, "--slots", 4) as (
        url,
        process,
    ):
        ends: list[str] = []

        def one() -> None:
            answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
            ends.append(answer.text[-14:])

        threads = [threading.Thread(target=one) for _ in range(16)]
        for thread in threads:
            thread.start()
        while httpx.get(f"{url}/health").json()["queued"] < 12:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(30)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    assert ends == ["data: [DONE]\n\n"] * 16


def test_ctrl_c_twice_does_not_wait(tiny_folder: Path) -> None:
    with running(tiny_folder) as (url, process):
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode == 130
        assert url.startswith("http://127.0.0.1:")


def test_options_from_the_environment(tiny_folder: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("from a file\n".replace(" ", "-"))
    env = {
        "PIPPIN_SERVE_SLOTS": "2",
        "PIPPIN_SERVE_ALIAS": "gpt",
        "PIPPIN_SERVE_API_KEY_FILE": str(key),
    }
    with running(tiny_folder, **env) as (url, _):
        assert httpx.get(f"{url}/health").json()["slots"] == 2
        assert httpx.get(f"{url}/v1/models").status_code == 401
        client = OpenAI(base_url=f"{url}/v1", api_key="from-a-file")
        assert [model.id for model in client.models.list()] == ["tiny", "gpt"]
    with running(tiny_folder, PIPPIN_SERVE_API_KEY="in-the-environment") as (url, _):
        client = OpenAI(base_url=f"{url}/v1", api_key="in-the-environment")
        assert len(client.models.list().data) == 1


def test_a_server_for_all_warns_when_it_has_no_key(tiny_folder: Path) -> None:
    with running(tiny_folder, "--host", "0.0.0.0") as (url, process):
        assert httpx.get(url.replace("0.0.0.0", "127.0.0.1") + "/health").status_code == 200
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert "--api-key-file" in err
    assert err.count("\n") == 1


def test_bad_options_are_refused_in_one_line(tiny_folder: Path, tmp_path: Path) -> None:
    assert "cannot listen" in one_line(run_pippin("serve", tiny_folder, "--host", "192.0.2.1"))
    empty = tmp_path / "empty"
    empty.write_text("\n")
    missing = run_pippin("serve", tiny_folder, "--api-key-file", tmp_path / "no")
    assert "cannot be read" in one_line(missing)
    assert "no API key" in one_line(run_pippin("serve", tiny_folder, "--api-key-file", empty))
    assert run_pippin("serve", tiny_folder, "--slots", 0).code == 2
    assert run_pippin("serve", tmp_path / "none", "--port", 0).code == 2


def test_a_port_in_use(tiny_folder: Path, tiny_server: Served) -> None:
    run = run_pippin("serve", tiny_folder, "--port", tiny_server.port)
    assert run.code == 2
    assert str(tiny_server.port) in one_line(run)
