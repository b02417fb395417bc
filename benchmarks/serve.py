"""`pippin serve` under load, beside llama-server: `python benchmarks/serve.py [--help]`.

Each client streams one reply after the other. A reply must be, to the letter, what the same server
says to the same prompt when nobody else asks. The contestants take turns; the one that is not asked
is stopped, so that it takes no processor time.
"""

import argparse
import asyncio
import json
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from machine import Watch, describe

from pippin.mlx_model.checkpoints import store
from pippin.runtime.cores import physical_cores

_TOPICS = (
    *("rivers", "bread", "the moon", "glass", "bees", "salt", "trains", "paper"),
    *("clocks", "rain", "iron", "tea", "maps", "bridges", "wool", "sleep"),
)


@dataclass
class Load:
    """What the clients of one round have seen."""

    requests: int = 0
    errors: list[str] = field(default_factory=list)
    different: int = 0  # replies that are not what was said alone
    lost: int = 0  # tokens that should have come and did not
    tokens: float = 0.0  # within the time of the round
    seconds: float = 0.0


@dataclass
class Server:
    """A process that answers /v1/chat/completions."""

    name: str
    process: subprocess.Popen
    port: int
    alone: dict[str, str] = field(default_factory=dict)  # the replies to single clients
    loads: list[Load] = field(default_factory=list)
    singles: list[Load] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)  # bytes, after each load


def main() -> None:
    options = _options()
    watch = Watch()
    servers = [_start_pippin(options)]
    if options.llama_server:
        servers.append(_start_llama(options))
    try:
        for server in servers:
            _wait(server)
            server.process.send_signal(signal.SIGSTOP)
        for round_ in range(options.rounds):
            for server in servers if round_ % 2 == 0 else servers[::-1]:
                _measure(server, options)
    finally:
        for server in servers:
            server.process.send_signal(signal.SIGCONT)
            server.process.terminate()
            server.process.wait(30)
    rows = [_row(server) for server in servers]
    others = watch.others()
    document = {"machine": describe(), "others": others, "options": vars(options), "rows": rows}
    if options.json:
        print(json.dumps(document))
    else:
        _print(document)
    failed = any(row["errors"] or row["lost"] or row["different"] for row in rows[:1])
    sys.exit(1 if failed else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=64, help="[64]")
    parser.add_argument("--seconds", type=float, default=120, help="under load, in all  [120]")
    parser.add_argument("--rounds", type=int, default=4, help="parts of that time  [4]")
    parser.add_argument("--slots", type=int, default=16, help="replies written at once  [16]")
    parser.add_argument("--tokens", type=int, default=64, help="of a reply  [64]")
    parser.add_argument("--model", default="smollm2", help="[smollm2]")
    parser.add_argument("--llama-server", metavar="PROGRAM", help="llama.cpp's, to compare with")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _start_pippin(options: argparse.Namespace) -> Server:
    command = [sys.executable, "-m", "pippin", "serve", options.model, "--name", "model"]
    command += ["--port", "0", "--slots", str(options.slots), "--context", "1024"]
    command += ["--queue", str(2 * options.clients), "--connections", str(4 * options.clients)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    address = process.stdout.readline().strip()
    if not address:
        sys.exit("pippin serve did not start")
    return Server("pippin", process, int(address.rpartition(":")[2]))


def _start_llama(options: argparse.Namespace) -> Server:
    path = store.resolve(options.model, fetch=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [options.llama_server, "-m", str(path), "--port", str(port), "-a", "model"]
    command += ["-np", str(options.slots), "-c", str(1024 * options.slots)]
    command += ["-t", str(physical_cores())]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return Server("llama-server", process, port)


def _wait(server: Server) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health", timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline or server.process.poll() is not None:
                sys.exit(f"{server.name} did not start")
            time.sleep(0.2)


def _measure(server: Server, options: argparse.Namespace) -> None:
    """One round: a single client, then all of them."""
    seconds = options.seconds / options.rounds
    server.process.send_signal(signal.SIGCONT)
    try:
        if not server.alone:
            for topic in _TOPICS:
                asyncio.run(_ask(server, options, topic, Load(), [], time.monotonic() + 1e6))
        server.singles.append(asyncio.run(_load(server, options, 1, min(seconds / 4, 10))))
        server.loads.append(asyncio.run(_load(server, options, options.clients, seconds)))
        server.memory.append(_resident(server.process.pid))
    finally:
        server.process.send_signal(signal.SIGSTOP)


async def _load(server: Server, options: argparse.Namespace, clients: int, seconds: float) -> Load:
    load, arrivals = Load(), []
    started = time.monotonic()
    deadline = started + seconds

    async def client(number: int) -> None:
        turn = number
        while time.monotonic() < deadline:
            topic = _TOPICS[turn % len(_TOPICS)]
            await _ask(server, options, topic, load, arrivals, deadline)
            turn += 1

    await asyncio.gather(*(client(number) for number in range(clients)))
    load.seconds = seconds
    load.tokens = sum(tokens for when, tokens in arrivals if when <= deadline)
    return load


async def _ask(
    server: Server,
    options: argparse.Namespace,
    topic: str,
    load: Load,
    arrivals: list[tuple[float, float]],
    deadline: float,
) -> None:
    """One reply, read to its end; `arrivals` gets when its tokens came."""
    moments: list[float] = []
    text, tokens = "", None
    load.requests += 1
    try:
        async with asyncio.timeout(300):
            async for chunk in _stream(server, options, topic):
                moments.append(time.monotonic())
                if chunk.get("error"):
                    raise OSError(str(chunk["error"])[:200])
                for choice in chunk.get("choices", []):
                    text += choice["delta"].get("content") or ""
                if chunk.get("usage"):
                    tokens = chunk["usage"]["completion_tokens"]
    except (OSError, TimeoutError, ValueError) as error:
        load.errors.append(f"{type(error).__name__}: {error}")
        return
    load.lost += options.tokens - (tokens or 0)
    if moments:
        arrivals += [(moment, (tokens or 0) / len(moments)) for moment in moments]
    load.different += text != server.alone.setdefault(topic, text)


async def _stream(
    server: Server, options: argparse.Namespace, topic: str
) -> AsyncIterator[dict[str, Any]]:
    """The chunks of one reply. Raises OSError for an answer that is no stream."""
    content = f"Write a paragraph about {topic}."
    body = json.dumps(
        {
            "model": "model",
            "messages": [
                {"role": "system", "content": "You are a helpful assistant who writes plainly."},
                {"role": "user", "content": content},
            ],
            "max_tokens": options.tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(head.encode() + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise OSError(status.decode().strip())
        done = False
        async for line in reader:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])
            done = done or line.startswith(b"data: [DONE]")
        if not done:
            raise OSError("the stream ended early")
    finally:
        writer.close()


def _resident(process: int) -> int:
    answer = subprocess.run(
        ["ps", "-o", "rss=", "-p", str(process)], capture_output=True, text=True, check=True
    )
    return int(answer.stdout) << 10


def _row(server: Server) -> dict[str, Any]:
    def rate(loads: list[Load]) -> float:
        return statistics.median(load.tokens / load.seconds for load in loads)

    return {
        "server": server.name,
        "requests": sum(load.requests for load in server.loads),
        "errors": [error for load in server.loads + server.singles for error in load.errors],
        "different": sum(load.different for load in server.loads + server.singles),
        "lost": sum(load.lost for load in server.loads + server.singles),
        "single_rate": rate(server.singles),
        "load_rate": rate(server.loads),
        "memory": server.memory,
    }


def _print(document: dict[str, Any]) -> None:
    others, options = document["others"], document["options"]
    print(document["machine"] + ("" if others is None else f"; others took {others:.0%}"))
    print(f"{options['clients']} clients, {options['slots']} slots, {options['seconds']:g} s")
    print("server        requests  errors  different  lost  one client  all clients  ratio  memory")
    for row in document["rows"]:
        memory = ", ".join(f"{size >> 20}" for size in row["memory"])
        print(
            f"{row['server']:<12}  {row['requests']:8}  {len(row['errors']):6}  "
            f"{row['different']:9}  {row['lost']:4}  {row['single_rate']:4.0f} tok/s  "
            f"{row['load_rate']:5.0f} tok/s  {row['load_rate'] / row['single_rate']:5.2f}  "
            f"{memory} MiB"
        )
        for error in row["errors"][:5]:
            print(f"  {error}")
    if len(document["rows"]) > 1:
        ours, theirs = document["rows"][:2]
        print(f"under load, to llama-server: {ours['load_rate'] / theirs['load_rate']:.2f}")


if __name__ == "__main__":
    main()
