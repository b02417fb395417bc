"""What `verify` says of consumers: against their own word where they run here, else by rule."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from pippin.export.folder import export_folder
from pippin.export.verify import verify_folder
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.runtime.ort_engine import OrtEngine
from support.command_line import run_pippin
from support.foreign_exports import ConsumerError, genai_greedy, optimum_greedy
from support.foreign_folders import checkpoint, foreign

pytestmark = pytest.mark.slow  # foreign exporters, and programs that import torch

IDS, NEW = [5, 7, 9], 8
OURS = ("pippin.runtime", "onnxruntime, our loop", "onnxruntime-web, our loop")
GENAI, OPTIMUM = "onnxruntime-genai 0.18", "optimum-onnx 0.1"
JS3 = ("transformers.js 3.8, Node", "transformers.js 3.8, browser")
JS4 = ("transformers.js 4.3, Node", "transformers.js 4.3, browser")
EVERYONE = {*OURS, GENAI, OPTIMUM, *JS3, *JS4}


def export(out: Path, name: str = "Llama", **options) -> Path:
    return export_folder(open_checkpoint(checkpoint(name).path), out, **options)


def verdicts(folder: Path):
    return {verdict.consumer: verdict for verdict in verify_folder(folder).consumers}


def works(folder: Path) -> set[str]:
    return {name for name, verdict in verdicts(folder).items() if verdict.works}


def reasons(folder: Path, consumer: str) -> str:
    return "; ".join(verdicts(folder)[consumer].reasons)


def change_json(path: Path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def change_genai(folder: Path, change) -> Path:
    change_json(folder / "genai_config.json", change)
    return folder


def genai_graph_in_our_layout(out: Path) -> Path:
    """The builder's graph and tokenizer, the checkpoint's config."""
    source = foreign("genai")
    shutil.copytree(source.path, out / "onnx", ignore=shutil.ignore_patterns("*.json", "*.jinja"))
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(source.path / file, out)
    shutil.copy(source.tiny.path / "config.json", out)
    return out


def optimum_graph_in_our_layout(out: Path) -> Path:
    source = foreign("optimum").path
    shutil.copytree(source, out, ignore=shutil.ignore_patterns("*.onnx"))
    (out / "onnx").mkdir()
    shutil.copy(source / "model.onnx", out / "onnx")
    return out


def share_what_grows(out: Path) -> Path:
    def change(content):
        content["search"]["past_present_share_buffer"] = True

    return change_genai(export(out, weights="fp32", dialect="standard"), change)


def a_null(out: Path) -> Path:
    def change(content):
        content["model"]["pad_token_id"] = None

    return change_genai(export(out, weights="fp32"), change)


def no_vocabulary_size(out: Path) -> Path:
    return change_genai(
        export(out, weights="fp32"), lambda content: content["model"].pop("vocab_size")
    )


def an_unknown_key(out: Path) -> Path:
    folder = export(out, weights="fp32")
    return change_genai(folder, lambda content: content["model"]["decoder"].update(rotary=1))


def an_unknown_type(out: Path) -> Path:
    folder = export(out, weights="fp32")
    return change_genai(folder, lambda content: content["model"].update(type="lama"))


def int8_caches(out: Path) -> Path:
    """GroupQueryAttention may keep keys and values as int8 codes, by a scale each channel."""
    folder = export(out, weights="fp32")
    graph = folder / "onnx" / "model.onnx"
    model = onnx.load(graph, load_external_data=False)
    for arg in (*model.graph.input, *model.graph.output):
        if arg.name.startswith(("past_key_values.", "present.")):
            arg.type.tensor_type.elem_type = onnx.TensorProto.INT8
    scales = numpy_helper.from_array(np.full((1, 2, 1, 16), 0.05, np.float32), "scales")
    model.graph.initializer.append(scales)
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.input.extend([""] * (12 - len(node.input)) + ["scales", "scales"])
            for name, value in (
                ("k_quant_type", "PER_CHANNEL"),
                ("v_quant_type", "PER_CHANNEL"),
                ("kv_cache_bit_width", 8),
            ):
                node.attribute.append(helper.make_attribute(name, value))
    graph.write_bytes(model.SerializeToString())
    return folder


FOLDERS = {
    "ours-fp32": lambda out: export(out, weights="fp32"),
    "ours-q4": lambda out: export(out, weights="q4", kv="fp32"),
    "ours-standard": lambda out: export(out, weights="fp32", dialect="standard"),
    "ours-wide-heads": lambda out: export(out, "wide heads", weights="fp32"),
    "ours-null": a_null,
    "ours-no-vocabulary-size": no_vocabulary_size,
    "ours-share-what-grows": share_what_grows,
    "ours-unknown-key": an_unknown_key,
    "ours-unknown-type": an_unknown_type,
    "ours-int8-caches": int8_caches,
    "genai": lambda out: foreign("genai").path,
    "genai-fp16-for-cuda": lambda out: foreign("genai-fp16").path,
    "genai-in-our-layout": genai_graph_in_our_layout,
    "optimum": lambda out: foreign("optimum").path,
    "optimum-merged": lambda out: foreign("optimum-merged").path,
    "optimum-in-our-layout": optimum_graph_in_our_layout,
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_what_runs_here_says_the_same(kind, tmp_path):
    folder = FOLDERS[kind](tmp_path / "folder")
    found = verdicts(folder)
    session = OrtEngine.from_folder(folder).open()
    logits, tokens = session.prefill(IDS), []
    while len(tokens) < NEW:
        tokens.append(int(logits.argmax()))
        logits = session.step(tokens[-1])
    for name, run in ((GENAI, genai_greedy), (OPTIMUM, optimum_greedy)):
        try:
            said = run(folder, IDS, NEW)
        except ConsumerError:
            said = None
        assert found[name].works == (said is not None), (name, found[name].reasons)
        assert said is None or said == tokens[: len(said)]


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("ours-fp32", EVERYONE),
        ("ours-q4", EVERYONE - {*JS3}),
        ("ours-standard", EVERYONE - {*JS3}),
        ("ours-wide-heads", EVERYONE - {OPTIMUM}),
        ("ours-int8-caches", {"pippin.runtime", GENAI, OPTIMUM, *JS4}),
        ("genai", {"pippin.runtime", GENAI}),
        ("genai-fp16-for-cuda", {"pippin.runtime"}),
        ("genai-in-our-layout", {"pippin.runtime"}),
        ("optimum", {"pippin.runtime", OPTIMUM}),
        ("optimum-merged", {"pippin.runtime", OPTIMUM}),
        ("optimum-in-our-layout", {"pippin.runtime", OPTIMUM, *JS3, *JS4}),
    ],
)
def test_the_table(kind, wanted, tmp_path):
    """Those of transformers.js were seen to hold with 3.8.1 and 4.3.2 in Node."""
    folder = FOLDERS[kind](tmp_path / "folder")
    assert works(folder) == wanted
    for verdict in verify_folder(folder).consumers:
        assert verdict.works == (not verdict.reasons)


def test_reasons(tmp_path):
    genai = genai_graph_in_our_layout(tmp_path / "genai")
    assert "K and D from the graph, which has names for them: [2, 'kv_" in reasons(genai, JS4[0])
    assert "12 inputs needs onnxruntime 1.23, it has 1.21" in reasons(genai, JS3[0])
    assert "are model.onnx.data, not model.onnx_data" in reasons(genai, JS4[1])
    assert "counts 0 data files, the graph has 1" in reasons(genai, JS4[1])
    assert "logits are those of all tokens" in reasons(genai, OURS[1])
    assert "TokenizersBackend" in reasons(genai, OPTIMUM)
    assert "no GatherBlockQuantized" in reasons(foreign("genai-int4").path, JS4[1])
    optimum = optimum_graph_in_our_layout(tmp_path / "optimum")
    assert verdicts(optimum)[JS4[0]].notes == (
        "it does not read chat_template.jinja: pass the template to apply_chat_template",
    )
    assert "asks for position_ids" in reasons(optimum, OURS[1])
    assert reasons(optimum, GENAI) == "there is no genai_config.json"


def test_float16_caches_in_version_3(tmp_path):
    folder = export(tmp_path / "out", weights="fp16")
    assert works(folder) == EVERYONE
    change_json(folder / "config.json", lambda c: c["transformers.js_config"].pop("kv_cache_dtype"))
    assert works(folder) == EVERYONE - {*JS3}
    assert "the caches are float16" in reasons(folder, JS3[0])


def test_a_missing_count_matters_in_a_browser_alone(tmp_path):
    folder = export(tmp_path / "out", weights="fp32")
    change_json(folder / "config.json", lambda config: config.pop("transformers.js_config"))
    assert works(folder) == EVERYONE - {JS3[1], JS4[1]}


def test_one_more_input(tmp_path):
    folder = export(tmp_path / "out", weights="fp32")
    graph = folder / "onnx" / "model.onnx"
    model = onnx.load(graph, load_external_data=False)
    model.graph.input.append(helper.make_tensor_value_info("extra", onnx.TensorProto.INT64, [1]))
    graph.write_bytes(model.SerializeToString())
    assert works(folder) == set()
    assert all("extra" in reasons(folder, consumer) for consumer in EVERYONE)


def test_several_graphs(tmp_path):
    """genai_config.json names one of them; the others are for those that choose by name."""
    folder = export(tmp_path / "out", weights="fp32")
    for file in export(tmp_path / "q4", weights="q4").glob("onnx/*"):
        shutil.copy(file, folder / "onnx")
    change_json(
        folder / "config.json",
        lambda c: c["transformers.js_config"]["use_external_data_format"].update(
            {"model_q4.onnx": 1}
        ),
    )
    report = verify_folder(folder)
    assert report.ok
    runs = {v.graph: v.works for v in report.consumers if v.consumer == GENAI}
    others = {"onnx/model_q4.onnx": False, "onnx/model_q4_kv8.onnx": False}
    assert runs == {"onnx/model.onnx": True, **others}


def test_the_command(tmp_path):
    ours, theirs = export(tmp_path / "out", weights="fp32"), foreign("genai").path
    assert run_pippin("verify", ours).code == 0
    run = run_pippin("verify", theirs)
    assert (run.code, run.err) == (1, "")
    assert "FAILED  config.json        there is none" in run.out
    report = json.loads(run_pippin("verify", theirs, "--json").out)
    said = {verdict["consumer"]: verdict["works"] for verdict in report["consumers"]}
    assert {name for name, yes in said.items() if yes} == {"pippin.runtime", GENAI}
    assert run_pippin("verify", tmp_path / "nowhere").code == 2


@pytest.mark.parametrize("damage", ["missing", "cut off", "vocabulary", "cache", "graph"])
@pytest.mark.parametrize("command", ["verify", "generate"])
def test_damaged_folders_end_with_2(command, damage, tmp_path):
    folder = Path(shutil.copytree(foreign("genai").path, tmp_path / "folder"))
    data, graph = folder / "model.onnx.data", folder / "model.onnx"
    named = {"vocabulary": "tokenizer.json", "cache": "genai_config.json", "graph": graph.name}
    if damage == "missing":
        data.unlink()
    elif damage == "cut off":
        data.write_bytes(data.read_bytes()[:-1])
    elif damage == "graph":
        graph.write_bytes(graph.read_bytes()[:-1])
    elif damage == "cache":
        change_genai(folder, lambda c: c["model"]["decoder"].update(num_key_value_heads=4))
    else:
        words = {f"w{n}": n for n in range(300)}
        from tokenizers import Tokenizer, models

        Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    run = run_pippin(command, folder, *(["Hi"] if command == "generate" else []))
    assert run.code == 2
    assert named.get(damage, data.name) in run.out + run.err
    assert "Traceback" not in run.err
