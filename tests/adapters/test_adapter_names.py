"""Where an adapter's names lead in a checkpoint."""

import pytest

from pippin.mlx_model.adapters.names import find_all, same_layer, tied_head
from pippin.runtime.errors import InputError


@pytest.mark.parametrize(
    ("name", "stored", "index"),
    [
        ("model.layers.0.q.weight", ["model.layers.0.q.weight", "vision.layers.0.q.weight"], 0),
        ("transformer.h.0.c.weight", ["h.0.c.weight", "h.1.c.weight"], 0),
        ("h.0.c.weight", ["transformer.h.0.c.weight", "transformer.h.1.c.weight"], 0),
        ("model.h.0.c.weight", ["transformer.h.0.c.weight", "transformer.h.1.c.weight"], 0),
        ("bert.layer.0.q.weight", ["text.layer.0.q.weight", "vision.layer.0.q.weight"], None),
        ("lm_head.weight", ["embed_out.weight", "norm.weight"], None),
        ("model.layers.10.q.weight", ["model.layers.0.q.weight"], None),
    ],
)
def test_names_differ_in_their_first_part_at_most(
    name: str, stored: list[str], index: int | None
) -> None:
    if index is None:
        with pytest.raises(InputError, match="which the checkpoint lacks"):
            find_all([name], stored)
    else:
        assert find_all([name], stored) == {name: stored[index]}


def test_two_names_of_one_layer_are_refused() -> None:
    with pytest.raises(InputError, match="under two names"):
        find_all(["model.h.0.c.weight", "transformer.h.0.c.weight"], ["h.0.c.weight"])


def test_same_layer() -> None:
    assert same_layer("model.embed_tokens", "embed_tokens")
    assert same_layer("model.layers.1.mlp", "layers.1.mlp")
    assert not same_layer("model.layers.1.mlp", "model.layers.11.mlp")
    assert not same_layer("lm_head", "embed_out")


@pytest.mark.parametrize(
    ("stored", "head"),
    [
        (["model.embed_tokens.weight", "model.norm.weight"], ["lm_head.weight"]),
        (["wte.weight", "wpe.weight"], ["lm_head.weight"]),
        (
            ["model.embed_tokens.weight", "model.embed_tokens.scales", "model.embed_tokens.biases"],
            ["lm_head.weight", "lm_head.scales", "lm_head.biases"],
        ),
        (["model.embed_tokens.weight", "lm_head.weight"], []),
        (["gpt_neox.embed_in.weight", "embed_out.weight"], []),
        (["embeddings.word_embeddings.weight"], []),
        (["bert.embeddings.word_embeddings.weight"], []),
        (["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"], []),
    ],
    ids=["llama", "gpt2", "quantized", "own-head", "neox", "encoder", "bert", "two-tables"],
)
def test_a_head_that_shares_the_table(stored: list[str], head: list[str]) -> None:
    assert list(tied_head(dict.fromkeys(stored))) == head
