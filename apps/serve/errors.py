"""What the server answers when it does not answer."""

from typing import Any

# status -> the kind of error, as OpenAI's and Anthropic's clients know it
_OPENAI = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ApiError(Exception):
    """A request that is refused or has failed: a status, one line, and the field it is about."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = headers or {}

    def as_openai(self) -> dict[str, Any]:
        """OpenAI's error object."""
        kind = _OPENAI.get(self.status, _kind(self.status, "server_error"))
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def as_anthropic(self) -> dict[str, Any]:
        """Anthropic's error object."""
        kind = _ANTHROPIC.get(self.status, _kind(self.status, "api_error"))
        return {"type": "error", "error": {"type": kind, "message": self.message}}

    def for_path(self, path: str) -> dict[str, Any]:
        """The error object of the interface that `path` belongs to."""
        return self.as_anthropic() if is_anthropic(path) else self.as_openai()


class BadField(ApiError):
    """A field that is missing, wrong, or not supported."""

    def __init__(self, name: str, problem: str, code: str | None = None) -> None:
        super().__init__(400, f"{name}: {problem}", param=name, code=code)


class QueueFull(ApiError):
    """More replies wait than the queue takes; `retry_after` seconds are worth waiting."""

    def __init__(self, waiting: int, retry_after: int) -> None:
        super().__init__(
            429,
            f"the queue is full: {waiting} replies are waiting for a slot; try again later",
            code="queue_full",
            headers={"Retry-After": str(retry_after)},
        )


def is_anthropic(path: str) -> bool:
    """Whether `path` belongs to Anthropic's interface."""
    return path == "/v1/messages" or path.startswith("/v1/messages/")


def too_late(seconds: float) -> ApiError:
    """A request that took longer than the server allows; clients must not repeat it at once."""
    return ApiError(
        504,
        f"the reply was not ready after {seconds:g} s, the server's limit; ask for fewer tokens",
        code="timeout",
        headers={"x-should-retry": "false"},
    )


def shutting_down() -> ApiError:
    """The server is about to end."""
    return ApiError(503, "the server is shutting down", code="shutting_down")


def _kind(status: int, server: str) -> str:
    return server if status >= 500 else "invalid_request_error"
