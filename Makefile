# make demo    one command from nothing to a reply on both backends
# make test    the whole test suite
# make models  measures every family and variant again, for docs/models.md
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist loadfile -rs

.PHONY: demo test test-fast models lint clean

$(VENV)/.product: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.test: $(VENV)/.product
	$(BIN)/python -m pip install --quiet --group dev
	sh tests/install-compiler $(BIN)/python
	sh tests/consumers/install-programs
	touch $@

demo: $(VENV)/.product
	$(BIN)/pippin pull smollm2
	$(BIN)/pippin generate smollm2 "Why is the sky blue? One sentence." --max-tokens 48 --backend onnx
	$(BIN)/pippin generate smollm2 "Why is the sky blue? One sentence." --max-tokens 48 --backend mlx
	$(BIN)/pippin parity smollm2

test: $(VENV)/.test
	$(PYTEST) -m "slow or not slow"

test-fast: $(VENV)/.test
	$(PYTEST)

models: $(VENV)/.test
	PYTHONPATH=tests $(BIN)/python -m support.models_document --write

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf $(VENV) build *.egg-info
