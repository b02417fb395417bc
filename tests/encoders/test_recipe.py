"""Pooling, and sentence-transformers' files around an encoder."""

import json

import mlx.core as mx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pippin.runtime.errors import InputError
from pippin.runtime.recipe import Recipe, read_recipe

TRANSFORMER = {
    "idx": 0,
    "name": "0",
    "path": "",
    "type": "sentence_transformers.models.Transformer",
}
POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
# as version 6 writes them
NEW_MODULES = [
    {"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
    {
        "path": "1_Pooling",
        "type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    },
    {"path": "2_Normalize", "type": "sentence_transformers.base.modules.normalize.Normalize"},
]
NEW_ENCODER = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}


def write(folder, modules=(TRANSFORMER, POOLING), pooling=None, encoder=None, settings=None):
    (folder / "1_Pooling").mkdir()
    files = {
        "modules.json": modules,
        "1_Pooling/config.json": {"pooling_mode_cls_token": True} if pooling is None else pooling,
        "sentence_bert_config.json": encoder or {"max_seq_length": 7, "do_lower_case": True},
        "config_sentence_transformers.json": settings or {},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def batch(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    hidden = random.standard_normal((3, 5, 4)).astype(np.float32) - 0.5
    mask = (np.arange(5) < np.array([5, 1, 3])[:, None]).astype(np.int64)
    return hidden, mask


def by_torch(way: str, hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    rows = []
    for vectors, seen in zip(torch.tensor(hidden), torch.tensor(mask), strict=True):
        tokens = vectors[seen.bool()]
        pooled = {
            "cls": lambda tokens: tokens[0],
            "max": lambda tokens: tokens.max(dim=0).values,
            "mean": lambda tokens: tokens.mean(dim=0),
            "mean_sqrt_len": lambda tokens: tokens.sum(dim=0) / len(tokens) ** 0.5,
        }[way](tokens)
        rows.append(pooled)
    return torch.stack(rows)


@pytest.mark.parametrize("xp", [np, mx], ids=["numpy", "mlx"])
@pytest.mark.parametrize("way", ["cls", "max", "mean", "mean_sqrt_len"])
def test_padding_is_left_out_of_pooling(way, xp):
    hidden, mask = batch()
    wanted = by_torch(way, hidden, mask)
    found = Recipe((way,)).pool(xp, xp.array(hidden), xp.array(mask))
    np.testing.assert_allclose(np.array(found), wanted.numpy(), rtol=1e-6, atol=1e-6)
    unit = Recipe((way,), normalize=True).pool(xp, xp.array(hidden), xp.array(mask))
    wanted = torch.nn.functional.normalize(wanted, dim=1).numpy()
    np.testing.assert_allclose(np.array(unit), wanted, rtol=1e-6, atol=1e-6)


def test_several_ways_stand_side_by_side():
    hidden, mask = batch()
    found = Recipe(("cls", "mean")).pool(np, hidden, mask)
    wanted = np.concatenate([by_torch(way, hidden, mask) for way in ("cls", "mean")], axis=1)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_tokens_are_averaged_where_nothing_is_said(tmp_path):
    assert read_recipe(tmp_path) == Recipe(("mean",))
    write(tmp_path, pooling={"pooling_mode_cls_token": False})
    assert read_recipe(tmp_path).pooling == ("mean",)


@pytest.mark.parametrize(
    ("stated", "wanted"), [(256, 256), (1000000000000000019884624838656, None), (None, None)]
)
def test_without_another_limit_the_tokenizers_holds(stated, wanted, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": stated}))
    assert read_recipe(tmp_path).max_length == wanted
    write(tmp_path, encoder={"do_lower_case": True})
    assert read_recipe(tmp_path).max_length == wanted
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    assert read_recipe(tmp_path).max_length == 9


def test_all_files_are_read(tmp_path):
    write(
        tmp_path,
        modules=[TRANSFORMER, POOLING, NORMALIZE],
        pooling={"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
        settings={
            "prompts": {"query": "query: "},
            "default_prompt_name": "query",
            "similarity_fn_name": "dot",
        },
    )
    recipe = read_recipe(tmp_path)
    assert recipe == Recipe(
        pooling=("max", "mean"),
        normalize=True,
        max_length=7,
        lower_case=True,
        prompt="query: ",
        similarity="dot",
    )
    assert recipe.prepare(" A Text ") == "query:  a text"


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [("cls", ("cls",)), (["mean_sqrt_len_tokens", "cls"], ("mean_sqrt_len", "cls"))],
    ids=["one", "several"],
)
def test_the_files_of_version_6(mode, wanted, tmp_path):
    pooling = {"embedding_dimension": 4, "pooling_mode": mode, "include_prompt": True}
    settings = {"prompts": {"query": ""}, "default_prompt_name": None}
    write(tmp_path, NEW_MODULES, pooling, NEW_ENCODER, settings)
    limits = {"model_max_length": 256, "truncation_side": "left"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(limits))
    assert read_recipe(tmp_path) == Recipe(wanted, True, 256, cut_side="left")


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(("cls",), normalize=True, max_length=9),
        Recipe(("max", "mean_sqrt_len"), max_length=12, lower_case=True, prompt="passage: "),
        Recipe(max_length=3, similarity="dot"),
    ],
    ids=["cls", "several", "dot"],
)
def test_what_is_written_is_what_was_read(recipe, tmp_path):
    for name, content in recipe.files(dimension=8, context=12).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content))
    assert read_recipe(tmp_path) == recipe


@pytest.mark.parametrize(
    ("files", "named"),
    [
        pytest.param({"modules": [TRANSFORMER]}, "lists Transformer;", id="no-pooling"),
        pytest.param(
            {"modules": [TRANSFORMER, POOLING, {"type": "sentence_transformers.models.Dense"}]},
            "Dense",
            id="dense",
        ),
        pytest.param({"modules": [TRANSFORMER, {"type": "my.Pooling"}]}, "my.Pooling", id="own"),
        pytest.param({"modules": {"a": 1}}, "no list of modules", id="no-list"),
        pytest.param({"pooling": {"pooling_mode_lasttoken": True}}, "lasttoken", id="last-token"),
        pytest.param(
            {
                "pooling": {
                    "pooling_mode_mean_tokens": True,
                    "pooling_mode_weightedmean_tokens": True,
                }
            },
            "weightedmean",
            id="weighted",
        ),
        pytest.param({"pooling": {"pooling_mode": "lasttoken"}}, "lasttoken", id="new-spelling"),
        pytest.param({"encoder": {"transformer_task": "fill-mask"}}, "fill-mask", id="task"),
        pytest.param({"encoder": {"query_length": 32}}, "query_length", id="many-vectors"),
        pytest.param({"settings": {"similarity_fn_name": "euclidean"}}, "euclidean", id="measure"),
        pytest.param({"settings": {"default_prompt_name": "x"}}, "'x'", id="prompt"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(files, named, tmp_path):
    with pytest.raises(InputError, match=named):
        read_recipe(write(tmp_path, **files))


def test_a_missing_or_damaged_file_is_named(tmp_path):
    write(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").unlink()
    with pytest.raises(InputError, match=r"1_Pooling/config\.json is missing"):
        read_recipe(tmp_path)
    (tmp_path / "modules.json").write_text("[{")
    with pytest.raises(InputError, match=r"modules\.json cannot be read as JSON"):
        read_recipe(tmp_path)


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 100))
def test_cosines_do_not_depend_on_length(seed, factor):
    left, right = np.random.default_rng(seed).standard_normal((2, 3, 5)).astype(np.float32)
    found = Recipe().compare(left * np.float32(factor), right)
    wanted = torch.nn.functional.cosine_similarity(
        torch.tensor(left)[:, None], torch.tensor(right)[None], dim=-1
    )
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-5)
    dot = Recipe(similarity="dot").compare(left, right)
    np.testing.assert_allclose(dot, left @ right.T, atol=1e-5)
