"""A conversation with a model: what was said, how replies are sampled, and where it is kept."""

from .session import ChatSession, ReplyChunk

__all__ = ["ChatSession", "ReplyChunk"]
