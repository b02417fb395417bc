"""Attention on Apple silicon: what is asked (`AttentionSpec`) and who computes it (`attention`)."""
