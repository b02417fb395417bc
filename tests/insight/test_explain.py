"""`pippin explain`: its numbers beside transformers' eager attention, its forms, its refusals."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from pippin.apps.insight.explanation import CAVEAT, choose_view, find_token
from pippin.apps.insight.heads import score_heads
from pippin.apps.insight.page_data import heads_data
from pippin.apps.insight.reading import read_text
from pippin.apps.models import load_generator, load_model
from pippin.commands.explain_print import print_heads
from pippin.runtime.errors import InputError
from pippin.runtime.sampling import SamplingParams
from support.command_line import one_line, run_pippin

TEXT = "Some words, and more: the same words."
MLX = ("--backend", "mlx", "--offline")
Invoke = Callable[..., Any]


@pytest.fixture(scope="module")
def eager(chat_model: Path) -> list[np.ndarray]:
    """By layer [H, S, S]: the weights of transformers' eager attention on TEXT."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(chat_model, attn_implementation="eager")
    with torch.inference_mode():
        out = model(torch.tensor([[*TEXT.encode()]]), output_attentions=True)
    return [layer[0].numpy() for layer in out.attentions]


def document(invoke: Invoke, *args: object) -> dict[str, Any]:
    result = invoke("explain", *args, "--json")
    assert result.exit_code == 0
    return json.loads(result.stdout)


@pytest.fixture(params=["onnx", "mlx"])
def model_args(request: pytest.FixtureRequest) -> tuple[object, ...]:
    if request.param == "mlx":
        return (request.getfixturevalue("chat_model"), TEXT, *MLX)
    return (request.getfixturevalue("chat_folder"), TEXT)


@pytest.mark.parametrize(("layer", "head", "token"), [(0, 0, 36), (1, 4, 20), (2, 5, 0)])
def test_weights_are_those_of_transformers(
    model_args: tuple[object, ...], invoke: Invoke, eager: list, layer: int, head: int, token: int
) -> None:
    place = ("--layer", layer, "--head", head, "--token", token, "--top", 5)
    step = document(invoke, *model_args, *place)["step"]
    wanted = eager[layer][head, token]
    order = np.argsort(-wanted[: token + 1], kind="stable")[:5]
    assert [row["token"]["index"] for row in step["top"]] == order.tolist()
    assert [row["weight"] for row in step["top"]] == pytest.approx(wanted[order], abs=1e-5)
    mean = eager[layer][:, token].mean(axis=0)
    assert [row["mean_weight"] for row in step["top"]] == pytest.approx(mean[order], abs=1e-5)
    assert step["first_weight"] == pytest.approx(wanted[0], abs=1e-5)
    assert step["other_weight"] == pytest.approx(1 - wanted[order].sum(), abs=1e-5)
    assert (step["seen"], step["masked"]) == (token + 1, len(TEXT) - token - 1)
    assert (step["layer"], step["head"], step["kv_head"]) == (layer, head, head // 3)
    for row in step["top"]:
        assert row["scaled"] == pytest.approx(row["product"] * 16**-0.5, rel=1e-5)
        assert row["score"] == pytest.approx(row["scaled"])
    scores = np.array([row["score"] for row in step["top"]])
    found = np.exp(scores - scores[0]) * step["top"][0]["weight"]
    assert found == pytest.approx(wanted[order], rel=1e-3)


def test_the_head_that_is_shown_is_the_one_that_the_rule_names(
    invoke: Invoke, chat_folder: Path, eager: list
) -> None:
    step = document(invoke, chat_folder, TEXT)["step"]
    query = len(TEXT) - 1
    idle = eager[1][:, query][:, [0, query - 1, query]].sum(axis=-1)  # the middle one of 3 layers
    assert (step["layer"], step["head"]) == (1, int(idle.argmin()))
    assert f"({100 * idle.min():.0f} %)" in step["why"]
    assert step["query"] == {"index": query, "id": ord("."), "text": "."}
    asked = document(invoke, chat_folder, TEXT, "--layer", 2)["step"]
    idle = eager[2][:, query][:, [0, query - 1, query]].sum(axis=-1)
    assert (asked["layer"], asked["head"]) == (2, int(idle.argmin()))
    asked = document(invoke, chat_folder, TEXT, "--head", 3)["step"]
    assert (asked["layer"], asked["head"]) == (1, 3)


def test_tokens_by_index_and_by_text(chat_folder: Path) -> None:
    tokenizer = load_generator(str(chat_folder), "onnx").tokenizer
    tokens = [*TEXT.encode()]
    assert find_token(tokenizer, tokens, None) == len(TEXT) - 1
    assert find_token(tokenizer, tokens, "-1") == len(TEXT) - 1
    assert find_token(tokenizer, tokens, "7") == 7
    assert find_token(tokenizer, tokens, "words") == TEXT.rindex("words") + 4
    assert find_token(tokenizer, tokens, "more") == TEXT.index("more") + 3
    assert find_token(tokenizer, [65, 257, 66], "<|im_end|>") == 1
    for wrong in ("Words!", "37", "-38", ""):
        with pytest.raises(InputError, match="0 to 36"):
            find_token(tokenizer, tokens, wrong)


def test_the_table(chat_folder: Path, invoke: Invoke, eager: list) -> None:
    args = ("--layer", 1, "--head", 2, "--token", "more", "--top", 3)
    lines = invoke("explain", chat_folder, TEXT, *args).stdout.splitlines()
    at = TEXT.index("more") + 3
    assert f"Query: token {at}, “e”; layer 1, head 2." in lines[0]
    header = next(i for i, line in enumerate(lines) if line.split()[:2] == ["KEY", "TOKEN"])
    assert lines[header].split() == [
        *("KEY", "TOKEN", "|K|", "Q·K", "SCALED", "WEIGHT", "ALL", "HEADS", "|V|"),
    ]
    weights = eager[1][2, at]
    order = np.argsort(-weights)[:3]
    assert [int(line.split()[0]) for line in lines[header + 1 : header + 4]] == order.tolist()
    assert f"{weights[order[0]]:.1%}".replace("%", " %") in lines[header + 1]
    assert lines[header + 4].split()[:2] == [f"{at + 1 - 3}", "others"]
    mask = f"mask: {at + 1} of {len(TEXT)} keys are seen; later ones get nothing"
    assert mask in "\n".join(lines)
    assert lines[-1] == CAVEAT
    assert "\x1b" not in "".join(lines)


def test_a_reply_is_that_of_generate(chat_model: Path, invoke: Invoke) -> None:
    sampling = {"temperature": 1.2, "top_k": 40, "top_p": 0.9, "seed": 3, "ignore_eos": True}
    options = [x for n, v in sampling.items() for x in ("--" + n.replace("_", "-"), v)][:-1]
    args = (chat_model, TEXT, *MLX, *options)
    found = document(invoke, *args, "--chat", "--generate", 9, "--token", "more")
    made = json.loads(
        invoke("generate", chat_model, TEXT, *MLX, *options, "--max-tokens", 9, "--json").stdout
    )
    walk = found["walkthrough"]
    assert [step["chosen"]["token"] for step in walk["steps"]] == made["tokens"]
    assert (walk["text"], walk["finish_reason"]) == (made["text"], made["finish_reason"])
    assert walk["params"]["seed"] == 3
    count = found["prompt_tokens"]
    assert [token["id"] for token in found["tokens"]][count:] == made["tokens"]
    assert [step["position"] for step in walk["steps"]] == list(range(count - 1, count + 8))
    assert len(walk["reads"]) == 9
    for step, read in zip(walk["steps"], walk["reads"], strict=True):
        assert max(key["index"] for key in read) <= step["position"]
        assert [key["weight"] for key in read] == sorted((k["weight"] for k in read), reverse=True)
    raw = document(invoke, *args, "--generate", 4)
    wanted = load_generator(str(chat_model), "mlx").generate(
        TEXT, SamplingParams(**sampling, max_tokens=4)
    )
    assert tuple(step["chosen"]["token"] for step in raw["walkthrough"]["steps"]) == wanted.tokens


def test_a_reply_in_the_terminal(chat_folder: Path, invoke: Invoke) -> None:
    args = ("--generate", 3, "--temperature", 1, "--top-k", 5, "--seed", 2, "--top", 6)
    shown = invoke("explain", chat_folder, TEXT, *args, "--ignore-eos").stdout
    found = document(invoke, chat_folder, TEXT, *args, "--ignore-eos")
    assert "The reply: 3 tokens, temperature 1, seed 2, ended by length." in shown
    assert shown.count("5 tokens were left to draw from") == 3
    assert shown.count("cut by top_k") == 3
    assert shown.count("top_k 5 cut 254") == 3
    for step in found["walkthrough"]["steps"]:
        assert f"the draw {step['draw']['number']:.4f} (seed 2)" in shown
    layer, head = found["step"]["layer"], found["step"]["head"]
    assert shown.count(f"Read by layer {layer}, head {head}: ") == 3


def test_the_models_numbers_need_no_text(chat_model: Path, invoke: Invoke) -> None:
    assert "model" not in document(invoke, "--positions")
    found = document(invoke, chat_model, "--block", "--length", 100, "--positions", "--offline")
    assert found["model"] == str(chat_model)
    assert found["block"]["length"] == 100
    assert sum(found["block"]["parameters"].values()) > 0
    assert {scheme["scheme"] for scheme in found["positions"]["schemes"]} >= {"RoPE", "YaRN"}
    assert "step" not in found
    shown = invoke("explain", chat_model, "--block", "--positions", "--offline").stdout
    for title in ("The block in numbers", "Work for the last token", "Positions by distance"):
        assert title in shown
    assert "at 512 tokens" in shown
    of_text = document(invoke, chat_model, TEXT, *MLX, "--block")
    assert of_text["block"]["length"] == len(TEXT)


def test_heads_as_a_table_and_a_picture(
    chat_folder: Path,
    invoke: Invoke,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = score_heads(load_generator(str(chat_folder), "onnx"))
    found = heads_data(report)
    assert np.shape(found["induction"]["score"]) == (3, 6)
    print_heads(report)
    shown = capsys.readouterr().out
    assert CAVEAT in shown
    for kind, scores in found.items():
        best = max(max(row) for row in scores["score"])
        line = next(line for line in shown.splitlines() if line.startswith(f"{kind} "))
        assert f"{best:.3f}" in line
    picture = shown[shown.index("a row a layer") :].splitlines()
    row = next(line for line in picture if line.startswith("0 "))
    tenths = [int(v * 10) for v in found[next(iter(found))]["score"][0]]
    assert row[2:8] == "".join(str(tenth) if tenth else "·" for tenth in tenths)
    monkeypatch.setattr("pippin.apps.insight.heads.score_heads", lambda *_: report)
    printed = document(invoke, chat_folder, "--heads")
    assert (printed["heads"], printed["caveat"]) == (found, CAVEAT)


def test_no_mlx_is_found_before_anything_is_computed(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pippin.apps.models.has_mlx", lambda: False)
    with pytest.raises(InputError, match="--versus-rnn needs MLX"):
        invoke("explain", "no-model", TEXT, "--versus-rnn")


def test_a_head_that_no_shown_layer_has_is_found_before_the_text_is_read() -> None:
    def read(_: Any, tokens: list[int], layers: list[int] | None, *__: Any) -> Any:
        assert len(tokens) == 1
        return SimpleNamespace(layers=dict(enumerate(shapes)))

    shapes = [
        SimpleNamespace(spec=SimpleNamespace(heads=heads), **dict.fromkeys("qkv", np.zeros(1)))
        for heads in (8, 4, 8)
    ]
    with pytest.raises(InputError, match="no head 5; a layer has 4"):
        choose_view(None, [1, 2, 3], 2, head=5, read=read)


def test_a_long_text_shows_how_far_it_is(chat_folder: Path) -> None:
    steps: list[tuple[int, int]] = []
    read_text(load_model(str(chat_folder)), TEXT, progress=lambda *step: steps.append(step))
    assert steps[-1] == (len(TEXT), len(TEXT))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--layer", 3), "there is no layer 3; the model has 3, give 0 to 2"),
        (("--layer", -1), "there is no layer -1"),
        (("--head", 6), "there is no head 6; a layer has 6, give 0 to 5"),
        (("--layer", 0, "--head", 9), "there is no head 9"),
        (("--token", 99), "there is no token 99; the text has 37, give 0 to 36"),
        (("--token", "nowhere"), "'nowhere' does not stand in the text"),
        (("--temperature", 1), "--temperature says how a reply is sampled; give --generate N"),
        (("--generate", 4, "--temperature", -1), "temperature is -1.0"),
        (("--generate", 4000), "exceed the context of 512 tokens"),
        (("--layers", "1"), "--layers is for the page; give --html FILE"),
        (("--html", "x.html", "--layers", "1;2"), "'1;2' does not read N or N-N"),
        (("--html", "x.html", "--layers", "2-1"), "'2-1' does not read N or N-N"),
        (("--html", "x.html", "--layers", "0-99999"), "'0-99999' does not read N or N-N"),
        (("--html", "x.html", "--layers", "7"), "there is no layer 7"),
        (("--html", ""), "--html names no file"),
        (("--html", "nowhere/x.html"), "there is no directory nowhere"),
        (("--length", 7), "--length is for --block"),
        (("--block", "--length", 513), "513 tokens"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(map(str, value)),
)
def test_what_is_not_there_is_refused(
    chat_folder: Path, tmp_path: Path, args: tuple[object, ...], message: str
) -> None:
    run = run_pippin("explain", chat_folder, TEXT, *args, cwd=tmp_path)
    assert run.code == 2
    assert message in one_line(run)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_text_and_stdin(chat_folder: Path, invoke: Invoke) -> None:
    run = run_pippin("explain", chat_folder, "")
    assert (run.code, "the text is empty" in one_line(run)) == (2, True)
    result = invoke("explain", chat_folder, "-", "--json", stdin=b"ab\n")
    assert [token["text"] for token in json.loads(result.stdout)["tokens"]] == ["a", "b"]
