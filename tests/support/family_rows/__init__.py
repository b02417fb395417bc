"""Which checkpoints the families are tested on: one file a group of families, each with ROWS."""
