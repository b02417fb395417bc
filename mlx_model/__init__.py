"""The decoder: config, families, checkpoints, the one forward, its interpreters, the MLX engine."""
