# SPDX-License-Identifier: Apache-2.0
# What there is to do here: make run, test, lint, format, bench, release-rehearsal, clean. Each sets up .venv first.
PYTHON ?= python3
TORCH ?= torch==2.13.0

KERNELS := $(patsubst kernels/%/build.toml,%,$(wildcard kernels/*/build.toml))
# What `make bench` measures and `make release-rehearsal` releases; with NAME=rmsnorm one of them.
NAME = $(KERNELS)

BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c ci/constraints.txt
READY := .venv/.ready
say = @printf '\n== %s\n'

.PHONY: run test lint format bench clean release-rehearsal tool kernel cuda gpu nvcc
.NOTPARALLEL:

run: $(READY) gpu  # build for this machine, publish to a Hub on it, load it from there in a fresh process
	@$(BIN)/python examples/own_hub.py rmsnorm examples/first_run.py

test: lint cuda tool kernel
	$(say) 'make test: all passed'

lint: $(READY)
	$(say) 'lint: vendored files, ruff, mypy, kernel directories, shell, workflows'
	$(BIN)/kernelworks vendor --check
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy --no-namespace-packages examples  # kernels is a package, and kernels/ a folder here
	$(BIN)/kernelworks check
	$(BIN)/shellcheck .ci/run ci/*.sh
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-actions .github/actions/*/action.yml
	$(BIN)/zizmor --offline --quiet .github
	@if [ -x $(BIN)/actionlint ]; then $(BIN)/actionlint; else echo 'actionlint: not installed; ci.yml has it'; fi

tool: $(READY) gpu  # the tests of the tool itself, and of the documents
	$(say) "tests of the tool"
	$(BIN)/pytest -n 2 ci/tests

cuda: $(READY) nvcc  # no GPU is needed to compile for one
	$(say) 'CUDA sources, for compute capability 7.5 and 9.0'
	$(BIN)/kernelworks build $(KERNELS) --backend cpu --backend cuda --arch 7.5 9.0
	$(BIN)/kernelworks check

kernel: $(READY) gpu  # where there is no GPU, the CUDA tests are skipped and say so
	$(say) 'tests of the kernels, loaded by get_kernel'
	$(BIN)/kernelworks test $(KERNELS) -- -n 2

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(READY) gpu
	@for name in $(NAME); do $(BIN)/kernelworks bench $$name || exit; done

# Tag, build, publish, verify, roll back: a release that leaves nothing, on a Hub of its own. With nvcc CUDA takes part:
# ARCH='7.5 9.0' builds it for these alone, CPU_ONLY=1 leaves it out.
REHEARSAL = $(if $(ARCH),--arch $(ARCH)) $(if $(CPU_ONLY),--cpu-only)
release-rehearsal: $(READY)
	@for name in $(NAME); do $(BIN)/python -m examples.release_rehearsal $$name $(REHEARSAL) || exit; done

clean:
	rm -rf .venv kernels/*/build kernels/*/.build .mypy_cache .ruff_cache .pytest_cache .hypothesis

gpu: $(READY)  # for the CPU always; for CUDA where torch sees a GPU, which may want pip's nvcc
	$(say) 'build for this machine'
	@! $(BIN)/python -c 'from kernelworks.loader import sees_gpu as s; raise SystemExit(not s())' || $(MAKE) nvcc
	$(BIN)/kernelworks build $(KERNELS)

nvcc: $(READY)  # of CUDA_HOME or PATH, otherwise of pip's packages
	@$(BIN)/python -c 'from kernelworks.toolchain import cuda_toolkit as c; c()' 2>/dev/null || $(PIP) -e '.[cuda13]'

$(READY): pyproject.toml ci/constraints.txt
	$(say) 'set up .venv (once; some minutes, most of them downloads)'
	$(PYTHON) -m venv .venv
	$(PIP) -e '.[dev]' $(TORCH)
	@touch $@
