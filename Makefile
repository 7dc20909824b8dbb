# The commands a person, or CI, runs here. `make help` lists them.
#
# Everything goes into $(VENV). Stamp files in it remember what was installed, so a second `make demo` starts at once.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
MANIFESTS := setup.cfg pyproject.toml constraints.txt

PONG_ARGS ?=
PYTEST_ARGS ?=
TEST_PROCESSES ?= 2
PARITY_ARGS ?=
BENCH_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test setup check lint types docs package-tree portable format pong bench parity check-lowest check-rllib hooks dist clean

help:
	@echo "make demo      what it does, in under two minutes: Pong back to back with Gymnasium, then PPO learns CartPole"
	@echo "make test      full set-up, then every test"
	@echo "make setup     full set-up only"
	@echo "make hooks     lint and types before every commit, by pre-commit"
	@echo "make check     what CI runs: ruff, mypy, the documentation, the portable path, the tests that are not slow"
	@echo "make types     mypy, strict"
	@echo "make docs      the documentation, into site/; a dead link is an error"
	@echo "make portable  the tests of the back ends over the portable path that macOS takes"
	@echo "make check-lowest  contract and Gymnasium-API tests with older Gymnasiums, in venvs of their own"
	@echo "make check-rllib   RLlib samples and learns with our vector envs"
	@echo "make format    ruff format and the safe fixes of ruff check"
	@echo "make pong      PPO on PongNoFrameskip-v4 until the mean return of 100 episodes is 18"
	@echo "make bench     every figure measured (an hour or so); writes docs/benchmarks.md; see vecenv bench document --help"
	@echo "make parity    the Atari presets beside the peers, bit for bit: 14 games, 840,000 agent steps; writes docs/parity.md"
	@echo "make dist      a release of the last commit in dist/: wheel and sdist, checked, installed in a fresh venv and used"
	@echo "make clean     remove what the commands above built (not $(VENV), runs/, results/)"

$(BIN)/python:
	@test -n "$(PYTHON)" && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "vecenv needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.stamp-demo: $(MANIFESTS) | $(BIN)/python
	@echo "Installing what the demo needs into $(VENV) (once; PyTorch is the large part) ..."
	$(INSTALL) --editable '.[demo]'
	@touch $@

$(VENV)/.stamp-dev: $(MANIFESTS) | $(BIN)/python
	@echo "Installing vecenv, every extra the tests need and the development tools into $(VENV) (once) ..."
	$(INSTALL) --editable '.[all,dev]'
	@touch $(VENV)/.stamp-demo $@

demo: $(VENV)/.stamp-demo
	$(BIN)/vecenv demo

setup: $(VENV)/.stamp-dev

# .pre-commit-config.yaml: make lint and make types before every commit.
hooks: $(VENV)/.stamp-dev
	$(BIN)/pre-commit install

test: $(VENV)/.stamp-dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# What takes minutes is left out, files are spread over processes, and what hangs where pytest-timeout cannot interrupt it
# (in C, with the interpreter locked) ends its process with a traceback.
QUICK := -m "not slow" -n $(TEST_PROCESSES) --dist loadfile --max-worker-restart 0 \
	-o faulthandler_timeout=360 -o faulthandler_exit_on_timeout=true

check: $(VENV)/.stamp-dev lint types docs portable
	$(BIN)/python -m pytest $(QUICK) $(PYTEST_ARGS)

# What rests on shared memory and signals, over the means that every POSIX system has in place of Linux's own. Spaces, actions
# and states of environments lie above them and are the same code.
PORTABLE_TESTS := $(wildcard tests/test_subproc_*.py) tests/test_vec_contract.py tests/test_vec_hardening.py \
	tests/test_vec_send_recv.py

portable: $(VENV)/.stamp-dev
	VECENV_PORTABLE=1 $(BIN)/python -m pytest -q $(QUICK) $(PORTABLE_TESTS)

# The oldest Gymnasium that is supported and the one that RLlib pins, each in a venv of its own. Left out are tests of
# what Gymnasium itself did otherwise then: ids of its own, and vector envs that write into the metadata of classes.
LOWEST := 1.1.0 1.2.2
LOWEST_TESTS := tests/test_gymnasium_ids.py tests/test_vec_contract.py tests/test_contract_suite.py
NOT_LOWEST := CliffWalking or gymnasiums_own or metadata

check-lowest: $(LOWEST:%=$(VENV)/gymnasium-%/.stamp)
	for version in $(LOWEST); do $(VENV)/gymnasium-$$version/bin/python -m pytest -q -m "not slow" \
		-k "not ($(NOT_LOWEST))" $(LOWEST_TESTS) $(PYTEST_ARGS) || exit 1; done

# RLlib with vecenv's envs; what RLlib needs beside the other extras is installed here only.
check-rllib: $(VENV)/.stamp-dev
	$(INSTALL) --editable '.[rllib]'
	$(BIN)/python -m pytest tests/test_ray_rllib.py $(PYTEST_ARGS)

$(VENV)/gymnasium-%/.stamp: $(MANIFESTS) | $(BIN)/python
	$(BIN)/python -m venv $(@D)
	grep -v '^gymnasium==' constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/python -m pip install -q --disable-pip-version-check -c $(@D)/constraints.txt \
		'gymnasium==$*' --editable '.[atari,bench,dev]'
	@touch $@

lint: $(VENV)/.stamp-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.stamp-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Type checkers and the reference's generator do not follow setuptools' folder mapping, so they are shown a tree of links
# in which the mapped folders lie where they are imported. Never make that tree inside vecenv/ itself: it would hide the
# mapped folders.
package-tree:
	@rm -rf .types && mkdir -p .types/vecenv
	@ln -s $(addprefix ../../,$(wildcard vecenv/*.py vecenv/py.typed)) .types/vecenv/
	@ln -s ../../preprocess ../../agents ../../benchmarks .types/vecenv/

types: $(VENV)/.stamp-dev package-tree
	MYPYPATH=.types $(BIN)/mypy --config-file setup.cfg -p vecenv

# The variable keeps the theme from announcing the future of MkDocs at every build. Not --quiet: what is not logged does not
# count for --strict.
docs: $(VENV)/.stamp-dev package-tree
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

pong: $(VENV)/.stamp-demo
	$(BIN)/vecenv train ppo --env PongNoFrameskip-v4 --solve-at 18 $(PONG_ARGS)

bench: $(VENV)/.stamp-dev
	$(BIN)/vecenv bench document --run $(BENCH_ARGS)

parity: $(VENV)/.stamp-dev
	$(BIN)/vecenv bench parity --report docs/parity.md $(PARITY_ARGS)

dist: $(VENV)/.stamp-dev
	$(BIN)/python .ci/dist.py

clean:
	rm -rf .types site .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	find vecenv preprocess agents benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +
