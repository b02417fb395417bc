"""The runtime stands on numpy, onnxruntime, tokenizers, jinja2 and the standard library alone."""

import subprocess
import sys
import textwrap

from pippin.runtime.generator import Generator
from pippin.runtime.sampling import SamplingParams
from support.byte_tokenizer import VOCAB, write_tokenizer
from support.graphs import Shape, write_folder

# Refuses every other import. markupsafe is jinja2's own.
GUARD = """
    import sys

    ALLOWED = {"numpy", "onnxruntime", "tokenizers", "jinja2", "markupsafe"}

    class Guard:
        def find_spec(self, name, path=None, target=None):
            top = name.partition(".")[0]
            ours = top == "pippin" and name.split(".")[1:2] in ([], ["runtime"])
            if ours or top in ALLOWED or top in sys.stdlib_module_names:
                return None
            if top.startswith("__editable__"):
                return None
            raise ModuleNotFoundError(f"{name} is not for the runtime", name=name)

    sys.meta_path.insert(0, Guard())
"""


def run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(GUARD) + textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_guard_guards():
    script = """
        for name in ("mlx.core", "onnx", "click", "pippin.mlx_model", "pippin.export"):
            try:
                __import__(name)
            except ModuleNotFoundError as error:
                assert "not for the runtime" in str(error), name
            else:
                raise SystemExit(f"{name} came through")
    """
    run(script)


def test_every_module_can_be_imported():
    script = """
        import importlib, pkgutil
        import pippin.runtime
        names = [m.name for m in pkgutil.iter_modules(pippin.runtime.__path__)]
        for name in names:
            importlib.import_module(f"pippin.runtime.{name}")
        for name in pippin.runtime.__all__:
            getattr(pippin.runtime, name)
        print(len(names))
    """
    assert int(run(script)) >= 15


def test_it_generates_from_a_folder_as_with_everything_installed(tmp_path):
    write_tokenizer(write_folder(tmp_path, Shape(vocab=VOCAB)))
    script = """
        import json, sys
        from pippin.runtime import Generator, SamplingParams
        generator = Generator.from_folder(sys.argv[1], threads=1)
        params = SamplingParams(temperature=0.8, seed=3, max_tokens=20, repetition_penalty=1.1)
        print(json.dumps(generator.generate([{"role": "user", "content": "hi"}], params).tokens))
    """
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=20, repetition_penalty=1.1)
    here = Generator.from_folder(tmp_path, threads=1)
    result = here.generate([{"role": "user", "content": "hi"}], params)
    assert run(script, str(tmp_path)).strip() == str(list(result.tokens))


def test_importing_the_package_imports_nothing_heavy():
    script = """
        import pippin.runtime
        heavy = {"numpy", "onnxruntime", "tokenizers", "jinja2"} & set(sys.modules)
        print(sorted(heavy))
    """
    assert run(script).strip() == "[]"
