"""Clients that misbehave: nothing falls over, no slot is lost, and later requests are right."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2 as httpx
import pytest

from pippin.apps.models import Model
from pippin.runtime.sampling import SamplingParams
from support.byte_tokenizer import VOCAB
from support.fake_engine import hashed
from support.serving import Served, fake_model, serving, wait_until

TURN = [{"role": "user", "content": "Hi"}]
BODY = {"model": "tiny", "messages": TURN, "max_tokens": 6, "seed": 1}
LONG = BODY | {"max_tokens": 900, "ignore_eos": True, "stream": True}


@pytest.fixture
def slow_server(byte_tokenizer: Path) -> Iterator[Served]:
    """A token takes a few milliseconds."""
    with serving(slow_model(byte_tokenizer), slots=4) as served:
        yield served


def request(served: Served, body: dict, path: str = "/v1/chat/completions") -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def connect(served: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port), timeout=20)


def read_all(connection: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(OSError):
        while part := connection.recv(65536):
            data += part
    return data


def check_right(served: Served) -> None:
    """The next request is answered as if nothing had happened."""
    answer = httpx.post(f"{served.url}/v1/chat/completions", json=BODY, timeout=30)
    text = answer.json()["choices"][0]["message"]["content"]
    params = SamplingParams(max_tokens=6, seed=1)
    assert text == served.service.model.generator.generate(TURN, params).text
    assert httpx.get(f"{served.url}/health").json()["status"] == "ok"


def test_half_of_the_clients_are_killed(slow_server: Served) -> None:
    wanted = slow_server.service.model.generator.generate(
        TURN, SamplingParams(max_tokens=60, seed=1, ignore_eos=True)
    ).text

    def one(number: int) -> str | None:
        body = BODY | {"stream": True, "max_tokens": 60, "ignore_eos": True}
        if number % 2:
            with connect(slow_server) as connection:
                connection.sendall(request(slow_server, body | {"max_tokens": 900}))
                connection.recv(200)
                # not closed in order: reset
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            return None
        text = ""
        with httpx.stream(
            "POST", f"{slow_server.url}/v1/chat/completions", json=body, timeout=60
        ) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: {"):
                    choices = json.loads(line[6:])["choices"]
                    text += choices[0]["delta"].get("content") or ""
        return text

    with ThreadPoolExecutor(24) as pool:
        texts = list(pool.map(one, range(24)))
    assert texts == [None if n % 2 else wanted for n in range(24)]
    wait_until(slow_server.idle, 10)
    check_right(slow_server)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/completions"])
def test_a_client_that_leaves_frees_its_slot(slow_server: Served, path: str, stream: bool) -> None:
    body = LONG | {"stream": stream}
    if path == "/v1/completions":
        body["prompt"] = "Hi"
        del body["messages"]
    with connect(slow_server) as connection:
        connection.sendall(request(slow_server, body, path))
        wait_until(lambda: slow_server.service.scheduler.state()["busy"] == 1, 10)
    started = time.monotonic()
    wait_until(slow_server.idle, 5)
    assert time.monotonic() - started < 1.0  # the reply would take two seconds and more
    check_right(slow_server)


def test_a_client_that_leaves_the_queue(slow_server: Served) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            connection = stack.enter_context(connect(slow_server))
            connection.sendall(request(slow_server, LONG))
        wait_until(lambda: slow_server.service.scheduler.state()["queued"] == 4, 10)
    wait_until(slow_server.idle, 5)
    check_right(slow_server)


def test_slow_readers_hold_up_nobody(fake_server: Served) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(connect(fake_server))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.sendall(request(fake_server, LONG | {"logprobs": True, "top_logprobs": 20}))
        wait_until(fake_server.idle, 60)  # although nobody reads, the replies end
        check_right(fake_server)


def test_a_slow_reader_misses_nothing(fake_server: Served) -> None:
    body = BODY | {"max_tokens": 300, "ignore_eos": True, "stream": True}
    with connect(fake_server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.sendall(request(fake_server, body))
        data = b""
        while b"[DONE]" not in data:
            data += connection.recv(700)
            time.sleep(0.001)
    lines = [line for line in data.decode().splitlines() if line.startswith("data: {")]
    said = "".join(
        json.loads(line[6:])["choices"][0]["delta"].get("content") or "" for line in lines
    )
    params = SamplingParams(max_tokens=300, seed=1, ignore_eos=True)
    assert said == fake_server.service.model.generator.generate(TURN, params).text


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\xff\xfe garbage\r\n\r\n",
        b"GET / FTP/1.1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n"
        b"Content-Length: 2\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 200_000,
        b"GET /health HTTP/1.1\r\n" + b"".join(b"X-%d: a\r\n" % i for i in range(20_000)),
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["bytes", "version", "negative", "twice", "chunks", "header", "flood", "target", "tls"],
)
def test_what_is_no_http_is_refused(fake_server: Served, data: bytes) -> None:
    with connect(fake_server) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        answer = read_all(connection)
    assert answer == b"" or answer.split(b" ")[1].startswith((b"4", b"5"))
    check_right(fake_server)


def test_gigantic_bodies_take_no_memory(fake_server: Served) -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    head += b"Content-Type: application/json\r\n"
    for kind in (b"Content-Length: 99999999999\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"):
        with connect(fake_server) as connection, contextlib.suppress(OSError):
            connection.sendall(head + kind)
            chunk = b"x" * (1 << 20)
            for _ in range(64):
                if kind.startswith(b"T"):
                    connection.sendall(b"%x\r\n" % len(chunk) + chunk + b"\r\n")
                else:
                    connection.sendall(chunk)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 48 << 10  # KiB; the limit of a body is 8 MiB
    check_right(fake_server)


def test_a_body_that_never_comes(byte_tokenizer: Path) -> None:
    with serving(fake_model(byte_tokenizer), timeout=0.5) as served:
        with connect(served) as connection:
            connection.sendall(request(served, BODY)[:-5])
            assert connection.recv(65536).startswith(b"HTTP/1.1 504 ")
        check_right(served)


def test_a_client_that_leaves_while_it_sends(
    fake_server: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    with connect(fake_server) as connection:
        connection.sendall(request(fake_server, BODY)[:-5])
    counts = fake_server.service.metrics.requests
    wait_until(lambda: counts.total())
    assert list(counts) == [("/v1/chat/completions", 499)]
    assert capfd.readouterr().err == ""
    check_right(fake_server)


def test_more_connections_than_are_taken(byte_tokenizer: Path) -> None:
    with serving(fake_model(byte_tokenizer), connections=8) as served:
        with contextlib.ExitStack() as stack:
            for _ in range(12):
                stack.enter_context(connect(served))
            wait_until(lambda: len(served.listener.server_state.connections) >= 12, 10)
            assert httpx.get(f"{served.url}/health").status_code == 503
        wait_until(lambda: len(served.listener.server_state.connections) < 8, 10)
        check_right(served)


def test_connections_that_say_nothing_are_closed(
    byte_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pippin.apps.serve.listen._HEAD_SECONDS", 0.3)
    with serving(fake_model(byte_tokenizer)) as served:
        with connect(served) as silent, connect(served) as trickling:
            started = time.monotonic()
            trickling.sendall(b"GET /health HTTP/1.1\r\n")
            assert read_all(silent) == b""
            assert read_all(trickling) == b""
            assert time.monotonic() - started < 5
        check_right(served)


def test_the_end_lets_replies_finish(byte_tokenizer: Path) -> None:
    model = slow_model(byte_tokenizer)
    with serving(model, shutdown=20.0) as served:
        wanted = model.generator.generate(
            TURN, SamplingParams(max_tokens=100, seed=1, ignore_eos=True)
        ).text
        body = BODY | {"max_tokens": 100, "ignore_eos": True}
        url = f"{served.url}/v1/chat/completions"
        with ThreadPoolExecutor(8) as pool:
            replies = [pool.submit(httpx.post, url, json=body, timeout=60) for _ in range(8)]
            wait_until(lambda: all_in(served), 10)
            served.stop()
            texts = [r.result().json()["choices"][0]["message"]["content"] for r in replies]
        assert texts == [wanted] * 8


def test_the_end_ends_streams_in_order(byte_tokenizer: Path) -> None:
    with serving(slow_model(byte_tokenizer), shutdown=0.3) as served:
        url = f"{served.url}/v1/chat/completions"
        with ThreadPoolExecutor(8) as pool:
            replies = [pool.submit(httpx.post, url, json=LONG, timeout=60) for _ in range(8)]
            wait_until(lambda: all_in(served), 10)
            started = time.monotonic()
            served.stop()
            assert time.monotonic() - started < 5
            for reply in replies:
                *_, error, done = reply.result().text.rstrip("\n").split("\n\n")
                assert done == "data: [DONE]"
                error = json.loads(error.removeprefix("data: "))["error"]
                assert error["code"] == "shutting_down"


def all_in(served: Served) -> bool:
    """Whether of eight requests four are being written and four wait."""
    state = served.service.scheduler.state()
    return (state["busy"], state["queued"]) == (4, 4)


def slow_model(tokenizer: Path) -> Model:
    def slow(tokens: list[int]):
        time.sleep(0.002)
        return hashed(VOCAB)(tokens)

    return fake_model(tokenizer, slow)


def test_a_fault_of_ours_ends_the_server(
    byte_tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    with serving(fake_model(byte_tokenizer)) as served:
        scheduler = served.service.scheduler

        def broken() -> None:
            raise RuntimeError("a fault of ours")

        monkeypatch.setattr(scheduler, "_round", broken)
        answer = httpx.post(f"{served.url}/v1/chat/completions", json=BODY, timeout=20)
        assert answer.status_code == 503
        wait_until(lambda: not served.thread.is_alive(), 10)
    assert "a fault of ours" in capsys.readouterr().err


def test_memory_and_threads_stay_as_they_are(fake_server: Served) -> None:
    url = f"{fake_server.url}/v1/chat/completions"
    with httpx.Client() as client:
        for _ in range(20):
            client.post(url, json=BODY)
        threads, slots = threading.active_count(), len(fake_server.service.scheduler._pool.slots)
        for number in range(60):
            body = BODY | {"messages": [{"role": "user", "content": f"{number}"}], "stream": True}
            with client.stream("POST", url, json=body) as stream:
                if number % 3:
                    stream.read()
        wait_until(fake_server.idle, 10)
        assert threading.active_count() <= threads + 1
        assert len(fake_server.service.scheduler._pool.slots) <= max(slots, 4)
    check_right(fake_server)
