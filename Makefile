# `make demo` and `make test` do their own set-up: a virtual environment in .venv, the package built and installed into it.
#   make demo DATA=path/to/train.txt      the demo on a real Criteo file
#   make test ARGS="tests/store -x"       a part of the suite
PYTHON ?= python3
DATA ?=
FAILURES ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
LINT_TOOLS := ruff mypy clang-format
# Without their dependencies: torch is there, as pinned, and torchrec would bring FBGEMM for CUDA. What else they need is in the
# extra `test`.
YARDSTICKS := fbgemm-gpu-cpu torchrec
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
# Directories are listed too, so that a deleted file also makes the installed package out of date.
SOURCES := Makefile pyproject.toml CMakeLists.txt constraints.txt \
  $(shell find cmake csrc cpr_native -name __pycache__ -prune -o ! -name '*.so' -print)
CPP := $(shell find csrc -name '*.cpp' -o -name '*.hpp' -o -name '*.inl' -o -name '*.cu' -o -name '*.cuh')

# The device's kernels run on the host in tests.
export SKBUILD_CMAKE_DEFINE ?= CPR_HOST_DEVICE=ON

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test cuda-code cuda-check test-cluster cluster-demo levels symbols lint format types bench study study-small quantised-study scale-study scar-study scar-small bench-check fuzz kills reattach soak histories \
  reliability reliability-small asan tsan develop clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z -]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/demo.stamp  ## train, lose shards, recover; writes results.json and report.html
	$(BIN)/cpr-native demo $(if $(DATA),--data '$(DATA)') $(ARGS)

# The command `pytest`, not `python -m pytest`: the working directory stays out of sys.path, where the source folder
# (it has no compiled module) would be found before the installed package.
test: $(VENV)/test.stamp  ## the whole test suite against the installed package
	$(BIN)/pytest $(ARGS)

test-cluster: $(VENV)/test.stamp  ## more failures of a cluster on Ray: cut links, no spare, two nodes at once (root, 10 minutes)
	$(BIN)/pytest tests/ray -m cluster $(ARGS)

# As root in a network of its own; else with a token alone. Under 3 minutes on two cores. Ray puts the working directory into
# the sys.path of its processes: not this one, whose cpr_native has no compiled module.
cluster-demo: $(VENV)/ray.stamp  ## train a DLRM over 4 shards on Ray, lose a process and a node; prints what happened
	cd examples && ../$(BIN)/python ray_dlrm.py $(if $(DATA),--data '$(abspath $(DATA))') $(ARGS)

# A level is an instruction set; `make test` runs the best one of the machine.
levels: $(VENV)/test.stamp  ## the engine's tests with every other instruction set of the machine
	levels=$$($(BIN)/python -I -c 'from cpr_native._native import supported_isas as s; print(*s()[:-1])') && \
	for level in $$levels; do \
	  echo "CPR_ISA=$$level"; CPR_ISA=$$level $(BIN)/pytest tests/table -k "not same_bits_on_every" $(ARGS) || exit 1; done

symbols: $(VENV)/test.stamp  ## the kernels' objects: nothing that the linker could take for another instruction set
	$(BIN)/python tests/kernel_symbols.py build/cp[0-9]*

# Without a GPU: nvcc's objects of the last build are read. ARGS=--write puts the table into docs/cuda.md.
cuda-code: $(VENV)/test.stamp  ## the compiled CUDA kernels: spills, width of loads, no fused arithmetic, occupancy
	$(BIN)/python tests/cuda_code.py build/cp[0-9]* $(ARGS)

# With a GPU, under 6 minutes: builds with the torch, nvcc and tools of PYTHON; nothing is fetched. ARGS="--seconds 300": less time.
cuda-check:  ## on a machine with a GPU: build, tests on the device, memcheck, benchmarks; writes build/cuda/check.json
	$(PYTHON) tests/cuda_check.py $(ARGS)

lint: $(VENV)/lint.stamp  ## ruff (lint and format) and clang-format, checks only
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run -Werror $(CPP)

format: $(VENV)/lint.stamp  ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CPP)

types: $(VENV)/test.stamp $(VENV)/lint.stamp  ## mypy --strict, and the native module's stub against the compiled module
	$(BIN)/mypy
	MYPYPATH=studies:examples:reliability $(BIN)/mypy -p study_common -p cpr_study -p scar_study -p campaigns -p quantised_study -p scale_study
	$(BIN)/stubtest cpr_native._native --mypy-config-file pyproject.toml --allowlist tests/stubtest_allowlist.txt --ignore-unused-allowlist

# Under 30 minutes on two cores that do nothing else; tables and yardsticks of up to 14 GB.
bench: $(VENV)/test.stamp  ## the benchmarks, timed; writes build/bench/engine.json, snapshot.json and cluster.json
	$(BIN)/pytest bench --benchmark-only --timeout 600 $(ARGS)

# Under 90 minutes on two cores that do nothing else; one that was stopped goes on where it was.
#   make study DATA=path/to/train.txt     on a real Criteo file, else on generated samples
#   make study FAILURES=path/to/log.csv   with recorded failures among those it is run with
study: $(VENV)/study.stamp  ## reproduce the CPR paper; writes docs/results/cpr.json, its page and plots
	cd studies && ../$(BIN)/python -m cpr_study $(if $(DATA),--data '$(abspath $(DATA))') \
	  $(if $(FAILURES),--failure-log '$(abspath $(FAILURES))') $(ARGS)

# Under 75 minutes on two cores that do nothing else; one that was stopped goes on where it was.
#   make scar-study DATA=path/to/data      on the data sets in that folder, else on generated data
scar-study: $(VENV)/study.stamp  ## reproduce the SCAR paper; writes docs/results/scar.json, its page and plots
	cd studies && PYTHONPATH=../examples ../$(BIN)/python -m scar_study $(if $(DATA),--data '$(abspath $(DATA))') $(ARGS)

scar-small: $(VENV)/study.stamp  ## the study of SCAR with few trials; writes to build/study
	cd studies && PYTHONPATH=../examples ../$(BIN)/python -m scar_study --small $(ARGS)

# Under 40 minutes on one core.
quantised-study: $(VENV)/study.stamp  ## what increments of 8 and 4 bits save and cost; writes docs/results/quantised.json
	cd studies && ../$(BIN)/python -m quantised_study $(if $(DATA),--data '$(abspath $(DATA))') $(ARGS)

# Under 30 minutes on two cores.
scale-study: $(VENV)/study.stamp  ## full and partial recovery by the number of shards; writes docs/results/scale.json and its page
	cd studies && ../$(BIN)/python -m scale_study $(ARGS)

study-small: $(VENV)/study.stamp  ## the whole study with few seeds and samples; writes to build/study
	cd studies && ../$(BIN)/python -m cpr_study --small $(ARGS)

bench-check: $(VENV)/test.stamp  ## the benchmarks once, with timing off: only their answers are checked
	$(BIN)/pytest bench --benchmark-disable $(ARGS)

# Campaigns against the checkpoint directory. Each ends with an error when it has found something.
#   make kills TIMES=1000     make fuzz SECONDS=3600     make soak SECONDS=7200
TIMES ?= 200
CAMPAIGN = cd reliability && ../$(BIN)/python -m campaigns

fuzz: $(VENV)/fuzz.stamp  ## fuzz the readers of a checkpoint, 10 minutes
	$(CAMPAIGN).fuzz --seconds $(or $(SECONDS),600) $(ARGS)

kills: $(VENV)/test.stamp  ## kill a training process 200 times
	$(CAMPAIGN).kills --times $(TIMES) $(ARGS)

reattach: $(VENV)/test.stamp  ## kill a trainer with its tables in shared memory 50 times
	$(CAMPAIGN).reattach $(ARGS)

soak: $(VENV)/test.stamp  ## train on a failing disk with recoveries and kills, 20 minutes
	$(CAMPAIGN).soak --seconds $(or $(SECONDS),1200) $(ARGS)

histories: $(VENV)/test.stamp  ## thousands of random operations on a directory against a model of it
	CPR_STORE_EXAMPLES=400 CPR_STORE_STEPS=25 $(BIN)/pytest -q -s --timeout 0 tests/store/test_store_property.py $(ARGS)

# About 45 minutes on two cores; one that was stopped goes on where it was.
reliability: $(VENV)/fuzz.stamp  ## all campaigns; writes docs/results/reliability.json and its page
	$(CAMPAIGN).everything $(ARGS)
	$(BIN)/python reliability/reliability_page.py

reliability-small: $(VENV)/fuzz.stamp  ## all campaigns, small; writes to build/reliability
	$(CAMPAIGN).everything --small --again $(ARGS)

# The engine's tests with a sanitized module; gcc's run-time library is loaded before Python. Limits of memory are for neither
# sanitizer. Forks of a process with threads are not for ThreadSanitizer, and comparing instruction sets tells it nothing.
asan: SANITIZER := address,undefined
asan: RUNTIME := libasan.so libstdc++.so
asan: SELECT := -k "not without_memory and not v9 and not every_kernel"
asan: export ASAN_OPTIONS := detect_leaks=0
asan: export UBSAN_OPTIONS := halt_on_error=1:print_stacktrace=1
tsan: SANITIZER := thread
tsan: RUNTIME := libtsan.so
tsan: SELECT := -k "not fork and not same_bits and not without_memory and not v9"
tsan: export TSAN_OPTIONS := exitcode=66
asan tsan: $(VENV)/test.stamp  ## the engine's tests under AddressSanitizer + UBSan, or ThreadSanitizer (gcc)
	$(INSTALL) -q pybind11 cmake ninja
	$(BIN)/cmake -S . -B build/$@ -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DCMAKE_BUILD_TYPE=Debug \
	  -DCPR_SANITIZE=$(SANITIZER) -DCPR_HOST_DEVICE=ON -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
	  -Dpybind11_DIR="$$($(BIN)/python -m pybind11 --cmakedir)"
	$(BIN)/cmake --build build/$@
	rm -rf build/$@/package && mkdir build/$@/package && cp -r cpr_native build/$@/package/
	cp build/$@/_native.*.so build/$@/package/cpr_native/
	PYTHONPATH=$(CURDIR)/build/$@/package LD_PRELOAD="$(foreach library,$(RUNTIME),$$(gcc -print-file-name=$(library)))" \
	  $(BIN)/pytest tests/table tests/device $(SELECT) $(ARGS)

develop: $(BIN)/python  ## install in place (editable), with every tool; rebuild by running it again
	rm -f $(VENV)/*.stamp
	$(INSTALL) pybind11 scikit-build-core cmake ninja
	$(INSTALL) --no-build-isolation -v -e ".[demo,test]" $(LINT_TOOLS) pre-commit
	$(INSTALL) --no-deps $(YARDSTICKS)

clean:  ## remove everything that make made
	rm -rf $(VENV) build results.json report.html demo-checkpoints .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: $(SOURCES) | $(BIN)/python
	$(INSTALL) ".[demo]"
	@touch $@

# The tools of an extra, for the package that is installed: "." would build it again.
$(VENV)/test.stamp: $(VENV)/demo.stamp
	$(INSTALL) -q "cpr-native[test,study]"
	$(INSTALL) -q --no-deps $(YARDSTICKS)
	@touch $@

$(VENV)/ray.stamp: $(VENV)/demo.stamp
	$(INSTALL) -q "cpr-native[ray]"
	@touch $@

$(VENV)/fuzz.stamp: $(VENV)/test.stamp
	$(INSTALL) -q "cpr-native[fuzz]"
	@touch $@

$(VENV)/study.stamp: $(VENV)/demo.stamp
	$(INSTALL) -q "cpr-native[study]"
	@touch $@

$(VENV)/lint.stamp: constraints.txt | $(BIN)/python
	$(INSTALL) -q $(LINT_TOOLS)
	@touch $@
