"""What tests do on the web page of the server."""

from typing import Any


def send(page: Any, text: str) -> None:
    """Write a message and send it with Enter."""
    page.fill("#message", text)
    page.keyboard.press("Enter")


def asked_of(body: dict[str, Any]) -> list[tuple[str, str]]:
    """Role and text of each message in a request."""
    return [(message["role"], message["content"]) for message in body["messages"]]
