"""What whoever starts a server decides."""

from dataclasses import dataclass, field

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ServeSettings:
    """Where to listen, how much to take on, and whom to trust."""

    host: str = "127.0.0.1"
    port: int = 8080
    slots: int = 8  # replies written at once
    context: int = 4096  # tokens of a prompt and its reply together
    queue: int = 128  # replies that may wait for a slot
    chunk: int = 128  # tokens of a prompt between two steps of the others
    timeout: float = 600.0  # seconds for a request, from its head to the reply's end
    body_limit: int = 8 << 20  # bytes of a request
    connections: int = 512  # open at once
    keep_alive: float = 15.0  # seconds between two signs of life in a stream
    shutdown: float = 30.0  # seconds for replies under way when the server is to end
    origins: tuple[str, ...] = ()  # whose web pages may call, "*" for all
    aliases: tuple[str, ...] = ()  # further names of the model
    fetch: bool = True  # the encoder that searches documents may be downloaded
    api_key: str | None = field(default=None, repr=False)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in LOOPBACK or self.host.startswith("127.")
