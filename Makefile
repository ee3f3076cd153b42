# bpfleakd: `make help` lists the targets.

PYTHON := .venv/bin/python
PREFIX ?= /opt/bpfleakd
BINDIR ?= /usr/local/bin
MANDIR ?= /usr/local/share/man
PYTEST_ARGS ?=
# A test that fails runs once more, a few per run; the summary shows the first failure.
ONCE_MORE := --reruns 1 --max-suite-reruns 6 --rerun-show-tracebacks
# How many tests run in parallel; more of the short kernel tests, which mostly wait.
JOBS ?= 2
KERNEL_JOBS ?= 3
BENCH_ARGS ?=
FUZZ_S ?= 300

# Tests and benchmarks start hundreds of daemons and commands; cached bytecode halves the time.
unexport PYTHONDONTWRITEBYTECODE

# Which packages `setup` installs: run, demo, test or bench (scripts/setup). Some targets below set more.
FOR ?= run

.DEFAULT_GOAL := help
.NOTPARALLEL:

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install packages, mount tracefs and bpffs, make .venv (as root; FOR=run, demo, image, test, vm or bench)
	@$(if $(filter setup,$(MAKECMDGOALS)),,SETUP_QUIET=yes) scripts/setup $(FOR)

.PHONY: demo
demo: FOR := demo
demo: setup ## Trace a leaking service until the verdict, in a minute and a half
	@scripts/demo

.PHONY: map
map: ## List every Python module with its first line (WHERE=tracing for one package)
	@cd src/bpfleakd && find $(or $(WHERE),.) -name '*.py' | LC_ALL=C sort | xargs awk \
		'FNR == 1 && /^"""/ { sub(/^"""/, ""); sub(/"""$$/, ""); sub(/^\.\//, "", FILENAME); printf "%-48s %s\n", FILENAME, $$0 }'

.PHONY: test
test: FOR := test
test: lint test-unit test-kernel test-attacks ## Lint, unit tests, short kernel tests, short attacks

.PHONY: lint
lint: FOR := test
lint: setup ## Check style and types of the Python code, that each test finds its fixtures, and the shell scripts
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	plan=$$($(PYTHON) -m pytest --setup-plan -qq $(filter-out %/unit/,$(wildcard tests/*/)) 2>&1) || { echo "$$plan" | tail -40; false; }
	shellcheck -x scripts/setup scripts/demo scripts/fuzz scripts/vendor-assets scripts/build-deb scripts/another-root \
		scripts/test-vm scripts/test-distributions scripts/test-image deploy/deb/postinst deploy/deb/prerm deploy/deb/postrm .ci/run

.PHONY: test-unit
test-unit: FOR := test
test-unit: setup ## Tests of the pure parts; no privileges, no kernel
	$(PYTHON) -m pytest -n $(JOBS) --dist worksteal $(ONCE_MORE) --cov --cov-report=term tests/unit $(PYTEST_ARGS)

.PHONY: test-kernel
test-kernel: FOR := test
test-kernel: setup ## Load BPF and trace real programs (as root)
	$(PYTHON) -m pytest -n $(KERNEL_JOBS) --dist worksteal $(ONCE_MORE) -m "not long" tests/kernel $(PYTEST_ARGS)

.PHONY: test-long
test-long: FOR := test
test-long: setup ## Long kernel tests, and all attach methods, in some 20 minutes (as root)
	$(PYTHON) -m pytest -n $(JOBS) --dist worksteal $(ONCE_MORE) -m long tests/kernel $(PYTEST_ARGS)

.PHONY: test-attacks
test-attacks: FOR := test
test-attacks: setup ## Short attacks by hostile processes, in a minute and a half (as root)
	$(PYTHON) -m pytest -n $(JOBS) --dist worksteal $(ONCE_MORE) tests/hostile $(PYTEST_ARGS)

# How long each attack of `test-hostile` lasts, or how often it is repeated.
HOSTILE_S ?= 30
ROUNDS ?= 5

.PHONY: test-hostile
test-hostile: FOR := test
test-hostile: setup ## Long attacks: floods, forged files, other users (HOSTILE_S=30, ROUNDS=5; as root)
	HOSTILE_S=$(HOSTILE_S) ROUNDS=$(ROUNDS) $(PYTHON) -m pytest tests/hostile -v -rP $(PYTEST_ARGS)

.PHONY: test-system
test-system: FOR := test
test-system: setup ## The package and the service under a real systemd, in a container (as root)
	$(PYTHON) -m pytest tests/system $(PYTEST_ARGS)

.PHONY: test-stress
test-stress: FOR := test
test-stress: setup ## Kills, 2,000 attaches, a soak of 20 minutes (SOAK_S, CYCLES, KILLS; hours, as root)
	$(PYTHON) -m pytest tests/stress -v -rP $(PYTEST_ARGS)

# KERNEL: a release in Debian's suites (6.1, 6.12-rt), or a package. PREEMPT: none, voluntary, lazy or full. scripts/test-vm.
KERNEL ?= 6.1
PREEMPT ?=
# Tests to run instead of those that scripts/test-vm lists.
VM_TESTS ?=
VM_MATRIX ?= 6.1 6.12 6.12-rt 6.18:lazy 6.18:full 7.3:lazy 7.3:full 7.3-rt

.PHONY: test-vm
test-vm: FOR := vm
test-vm: setup ## Test preemption and kernel differences on KERNEL (6.1) with PREEMPT, in qemu (as root)
	KERNEL=$(KERNEL) PREEMPT=$(PREEMPT) scripts/test-vm $(VM_TESTS)

.PHONY: test-vm-matrix
test-vm-matrix: FOR := vm
test-vm-matrix: setup ## The same on each kernel in VM_MATRIX (KERNEL or KERNEL:PREEMPT)
	@failed=; for each in $(VM_MATRIX); do preempt=$${each#*:}; [ "$$preempt" != "$$each" ] || preempt=; \
		KERNEL=$${each%:*} PREEMPT=$$preempt scripts/test-vm || failed="$$failed $$each"; done; \
		[ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

# Debian releases that `test-distributions` sets up from scratch.
DISTRIBUTIONS ?= trixie

.PHONY: test-distributions
test-distributions: FOR := vm
test-distributions: setup ## Setup, demo and tests on another Debian release (DISTRIBUTIONS=trixie; as root)
	@set -e; for each in $(DISTRIBUTIONS); do scripts/test-distributions $$each; done

.PHONY: test-image
test-image: FOR := image
test-image: setup ## Build the container image, run it as in Kubernetes, wait for the verdict on a leak (as root)
	scripts/test-image

.PHONY: fuzz
fuzz: FOR := test
fuzz: setup ## Fuzz the parsers of files, names, perf maps, /proc, messages, requests for FUZZ_S seconds (300)
	scripts/fuzz $(FUZZ_S)

# Stacks to sample from each of the five programs.
VERIFY_STACKS ?= 1000

.PHONY: verify-stacks
verify-stacks: FOR := test
verify-stacks: setup ## Compare thousands of stacks with gdb's, frame by frame (VERIFY_STACKS=1000 a program)
	VERIFY_STACKS=$(VERIFY_STACKS) $(PYTHON) -m pytest tests/kernel/test_stacks_against_gdb.py -v -rP $(PYTEST_ARGS)

# Stacks to sample from each interpreter.
VERIFY_PYTHON_STACKS ?= 1000

.PHONY: verify-python-stacks
verify-python-stacks: FOR := test
verify-python-stacks: setup ## Compare thousands of Python stacks with sys._getframe, on CPython 3.9 to 3.14 (as root)
	scripts/unpack-pythons build/pythons
	VERIFY_PYTHON_STACKS=$(VERIFY_PYTHON_STACKS) $(PYTHON) -m pytest tests/kernel/test_python_stacks.py -v -rP $(PYTEST_ARGS)

# How long each of the six runtimes is watched, in seconds.
HEALTHY_S ?= 600

.PHONY: healthy-runtimes
healthy-runtimes: FOR := test
healthy-runtimes: setup ## Trace Java, Node.js and .NET programs that churn or idle for HEALTHY_S (600): no leak (as root)
	HEALTHY_S=$(HEALTHY_S) $(PYTHON) -m pytest tests/kernel/test_healthy_runtimes.py -v -rP $(PYTEST_ARGS)

.PHONY: verdict-simulation
verdict-simulation: FOR := test
verdict-simulation: setup ## Error rates of the verdicts on simulated call sites; draws docs/verdicts.svg
	$(PYTHON) -m bench.verdict_simulation

VERDICTS_ARGS ?=

.PHONY: verdicts
verdicts: FOR := test
verdicts: setup ## Check the verdicts on programs with known leaks, for 10 minutes; writes docs/verdicts.md (as root)
	$(PYTHON) -m bench.verdicts $(VERDICTS_ARGS)

HEALTHY_ARGS ?=

.PHONY: verdicts-hard
verdicts-hard: FOR := test
verdicts-hard: setup ## The same on a busy machine, sampled, and with daemon crashes; writes docs/verdicts.md (as root)
	$(PYTHON) -m bench.verdicts --hard --seconds 180 $(VERDICTS_ARGS)

.PHONY: verdicts-inside
verdicts-inside: FOR := test
verdicts-inside: setup ## The same, sampled inside the programs, for 15 minutes; writes docs/verdicts.md (as root)
	$(PYTHON) -m bench.verdicts --inside --seconds 900 $(VERDICTS_ARGS)

.PHONY: healthy
healthy: FOR := bench
healthy: setup ## Trace programs that do not leak, under load, for 10 minutes; writes docs/verdicts.md (as root)
	$(PYTHON) -m bench.healthy $(HEALTHY_ARGS)

.PHONY: released-leaks
released-leaks: FOR := bench
released-leaks: setup ## Find leaks of released packages (PyPI, npm, Debian), for 15 minutes; writes docs/verdicts.md (as root)
	$(PYTHON) -m bench.released_leaks

.PHONY: bench
bench: FOR := bench
bench: setup ## Measure what tracing costs, against other tools (BENCH_ARGS=--short, --strict, or names)
	$(PYTHON) -m bench.run $(BENCH_ARGS)

.PHONY: inside
inside: ## Build build/inside/libbpfleak.so, the sampler inside a program
	@$(MAKE) --silent -C inside BUILD=$(CURDIR)/build/inside

.PHONY: check-inside
check-inside: ## Stress-test it with every installed allocator, and under valgrind (2 minutes)
	$(MAKE) --silent -C inside BUILD=$(CURDIR)/build/inside check check-valgrind

.PHONY: completions
completions: FOR := test
completions: setup ## Regenerate deploy/completions after a change of bpfleakctl's arguments
	PYTHONPATH=src $(PYTHON) scripts/completions.py deploy/completions

.PHONY: dashboard-pictures
dashboard-pictures: FOR := test
dashboard-pictures: setup ## Draw docs/pictures/grafana-*.png from live data (as root; needs npm and pngquant)
	PYTHONPATH=.:src $(PYTHON) scripts/dashboard-pictures/draw.py

.PHONY: wheel
wheel: setup ## Build dist/bpfleakd-*.whl, with the BPF sources inside
	rm -rf dist
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls dist/*.whl

.PHONY: deb
deb: wheel ## Build dist/bpfleakd_*.deb for this distribution
	@scripts/build-deb dist/*.whl

UNITDIR = $(DESTDIR)/usr/lib/systemd/system
SYSUSERSDIR = $(DESTDIR)/usr/lib/sysusers.d
BASH_COMPLETION = $(DESTDIR)/usr/share/bash-completion/completions/bpfleakctl
ZSH_COMPLETION = $(DESTDIR)/usr/share/zsh/vendor-completions/_bpfleakctl
FISH_COMPLETION = $(DESTDIR)/usr/share/fish/vendor_completions.d/bpfleakctl.fish
MAN_PAGES := bpfleakctl.1 bpfleakd.8 bpfleakd.yaml.5
# The environment has no pip; .venv's pip fills it.
PIP_INTO := $(PYTHON) -m pip --quiet --disable-pip-version-check --python $(DESTDIR)$(PREFIX)/bin/python

.PHONY: install
install: wheel inside ## Install into PREFIX (/opt/bpfleakd) and BINDIR (/usr/local/bin), with a systemd unit
	"$$($(PYTHON) -c 'import sys; print(sys._base_executable)')" -m venv --system-site-packages --without-pip \
		$(DESTDIR)$(PREFIX)
	$(PIP_INTO) install --force-reinstall --no-deps dist/*.whl
	$(PIP_INTO) install dist/*.whl
	sed -i '1s,#!$(DESTDIR)/,#!/,' $(DESTDIR)$(PREFIX)/bin/bpfleakd $(DESTDIR)$(PREFIX)/bin/bpfleakctl
	install -d $(DESTDIR)$(BINDIR) $(UNITDIR)
	ln -sf $(PREFIX)/bin/bpfleakd $(PREFIX)/bin/bpfleakctl $(DESTDIR)$(BINDIR)/
	install -D -m 644 build/inside/libbpfleak.so $(DESTDIR)$(PREFIX)/lib/bpfleakd/libbpfleak.so
	install -D -m 644 deploy/systemd/runtime-sockets.conf $(DESTDIR)$(PREFIX)/runtime-sockets.conf
	sed 's,/usr/bin/bpfleakd,$(BINDIR)/bpfleakd,; s,/usr/share/doc/bpfleakd,$(PREFIX),' \
		deploy/systemd/bpfleakd.service >$(UNITDIR)/bpfleakd.service
	install -D -m 644 deploy/systemd/bpfleakd.sysusers $(SYSUSERSDIR)/bpfleakd.conf
	install -D -m 644 deploy/completions/bpfleakctl.bash $(BASH_COMPLETION)
	install -D -m 644 deploy/completions/_bpfleakctl $(ZSH_COMPLETION)
	install -D -m 644 deploy/completions/bpfleakctl.fish $(FISH_COMPLETION)
	PYTHONPATH=src $(PYTHON) scripts/manpages.py $(DESTDIR)$(PREFIX)/man
	for page in $(MAN_PAGES); do \
		install -D -m 644 $(DESTDIR)$(PREFIX)/man/$$page $(DESTDIR)$(MANDIR)/man$${page##*.}/$$page; done
	rm -r $(DESTDIR)$(PREFIX)/man
	install -m 644 README.md SECURITY.md $(DESTDIR)$(PREFIX)/
	install -D -m 644 deploy/config.example.yaml $(DESTDIR)/etc/bpfleakd/config.example.yaml
	@[ -n "$(DESTDIR)" ] || ! [ -d /run/systemd/system ] || \
		{ systemd-sysusers bpfleakd.conf && systemctl daemon-reload && echo "systemctl enable --now bpfleakd"; }

.PHONY: uninstall
uninstall: ## Stop the service and remove what `make install` made; /etc/bpfleakd/config.yaml stays
	@[ -n "$(DESTDIR)" ] || ! [ -d /run/systemd/system ] || systemctl --quiet disable --now bpfleakd || true
	rm -rf $(DESTDIR)$(PREFIX) $(DESTDIR)$(BINDIR)/bpfleakd $(DESTDIR)$(BINDIR)/bpfleakctl
	rm -f $(BASH_COMPLETION) $(ZSH_COMPLETION) $(FISH_COMPLETION)
	for page in $(MAN_PAGES); do rm -f $(DESTDIR)$(MANDIR)/man$${page##*.}/$$page; done
	rm -f $(UNITDIR)/bpfleakd.service $(SYSUSERSDIR)/bpfleakd.conf $(DESTDIR)/etc/bpfleakd/config.example.yaml
	@[ -n "$(DESTDIR)" ] || ! [ -d /run/systemd/system ] || systemctl daemon-reload

.PHONY: clean
clean: ## Remove what was built; `rm -r .venv` also removes the environment
	rm -rf build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis .coverage*
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
