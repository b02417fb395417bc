"""What families share: reading a config.json key by key, RoPE's spellings, weight layouts."""
