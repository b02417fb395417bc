"""The conversation of `pippin chat` at a terminal."""
