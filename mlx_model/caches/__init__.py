"""KV caches of one layer: which tokens are held (full, window, ragged) and as what (storage)."""
