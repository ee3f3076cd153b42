# bpfleakd: `make help` lists what can be done here.

PYTHON := .venv/bin/python
PREFIX ?= /opt/bpfleakd
BINDIR ?= /usr/local/bin
PYTEST_ARGS ?=
# How many tests run at a time.
JOBS ?= 2
BENCH_ARGS ?=
FUZZ_S ?= 300

# Which packages `setup` installs: run, demo or test (scripts/setup). A target below may want more.
FOR ?= run

.DEFAULT_GOAL := help
.NOTPARALLEL:

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install packages, mount tracefs and bpffs, make .venv (as root; FOR=run, demo or test)
	@$(if $(filter setup,$(MAKECMDGOALS)),,SETUP_QUIET=yes) scripts/setup $(FOR)

.PHONY: demo
demo: FOR := demo
demo: setup ## Watch a leaking service being found out, in half a minute
	@scripts/demo

.PHONY: test
test: FOR := test
test: lint test-unit test-kernel ## Everything: lint, unit tests, kernel tests

.PHONY: lint
lint: FOR := test
lint: setup ## Check the style of Python and shell
	$(PYTHON) -m ruff check .
	shellcheck scripts/setup scripts/demo scripts/fuzz .ci/run

.PHONY: test-unit
test-unit: FOR := test
test-unit: setup ## Tests of the pure parts; no privileges, no kernel
	$(PYTHON) -m pytest -n $(JOBS) --dist worksteal tests/unit $(PYTEST_ARGS)

.PHONY: test-kernel
test-kernel: FOR := test
test-kernel: setup ## Load BPF and trace real programs (as root)
	$(PYTHON) -m pytest -n $(JOBS) --dist worksteal tests/kernel $(PYTEST_ARGS)

.PHONY: fuzz
fuzz: FOR := test
fuzz: setup ## Damaged ELF files, unwind information and perf maps, for FUZZ_S seconds (300)
	scripts/fuzz $(FUZZ_S)

# Samples of each of the five programs.
VERIFY_STACKS ?= 1000

.PHONY: verify-stacks
verify-stacks: FOR := test
verify-stacks: setup ## Compare thousands of stacks with gdb's, frame by frame (VERIFY_STACKS=1000 a program)
	VERIFY_STACKS=$(VERIFY_STACKS) $(PYTHON) -m pytest tests/kernel/test_stacks_against_gdb.py -v -rP $(PYTEST_ARGS)

.PHONY: bench
bench: FOR := test
bench: setup ## Measure what tracing costs, against its peers (BENCH_ARGS=--short, --strict)
	$(PYTHON) -m bench.run $(BENCH_ARGS)

.PHONY: wheel
wheel: setup ## Build dist/bpfleakd-*.whl, with the BPF sources inside
	rm -rf dist
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls dist/*.whl

.PHONY: install
install: wheel ## Install into PREFIX (/opt/bpfleakd), commands linked into BINDIR (/usr/local/bin)
	"$$($(PYTHON) -c 'import sys; print(sys._base_executable)')" -m venv --system-site-packages $(PREFIX)
	$(PREFIX)/bin/pip install --quiet --disable-pip-version-check --force-reinstall --no-deps dist/*.whl
	$(PREFIX)/bin/pip install --quiet --disable-pip-version-check dist/*.whl
	ln -sf $(PREFIX)/bin/bpfleakd $(PREFIX)/bin/bpfleakctl $(BINDIR)/

.PHONY: uninstall
uninstall: ## Remove what `make install` made
	rm -rf $(PREFIX) $(BINDIR)/bpfleakd $(BINDIR)/bpfleakctl

.PHONY: clean
clean: ## Remove what was built; `rm -r .venv` also removes the environment
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
