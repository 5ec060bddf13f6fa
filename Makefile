# make serve | test | test-long | test-extended | test-turn | turn | check | compile | console | console-picture | bench | bench-peers | bench-growth | bench-tenancy | bench-cells | bench-import
# | bench-move | bench-processes | bench-cockroach | bench-profile | torture | attack | failover | install

PYTHON ?= python3
# make test ENGINE=postgresql://superuser:password@host:port/ runs the tests on that server instead of bundled ones.
ENGINE ?=
export TUPLEGATE_TEST_ENGINE := $(ENGINE)
ARGS ?=
# How many tests run at a time: one more than two cores, since a third of their time is spent waiting. On an engine of
# one's own, one: they share it.
JOBS ?= $(if $(ENGINE),0,3)
# A service starts in two thirds of the time where Python may keep what it has compiled.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
# Patroni, apart from what the service and its tests are made with.
FAILOVER := .failover
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# The package with its hot path compiled; used where it is there and as new as the sources.
COMPILED := build/compiled
IF_COMPILED := $(MAKE) --no-print-directory --question $(COMPILED)/stamp 2>/dev/null && export PYTHONPATH="$(CURDIR)/$(COMPILED)";

.PHONY: install install-dev serve compile console console-picture try-console test test-long test-extended test-turn turn check format docs bench bench-peers bench-growth bench-tenancy bench-cells bench-import bench-move bench-processes bench-cockroach bench-profile torture attack failover clean requirements requirements-peers

install: $(VENV)/serve.stamp

install-dev: $(VENV)/dev.stamp try-console

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tuplegate needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/serve.stamp: requirements/serve.txt pyproject.toml | $(VENV)/bin/python
	$(PIP) install --require-hashes -r requirements/serve.txt
	echo $(CURDIR)/src > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tuplegate.pth"
	printf '#!/bin/sh\nexec "%s/python" -m tuplegate "$$@"\n' "$(CURDIR)/$(BIN)" > $(BIN)/tuplegate && chmod +x $(BIN)/tuplegate
	touch $@

$(VENV)/dev.stamp: requirements/dev.txt $(VENV)/serve.stamp
	$(PIP) install --require-hashes -r requirements/dev.txt
	touch $@

serve: $(VENV)/serve.stamp try-console
	@$(IF_COMPILED) exec $(BIN)/python -m tuplegate serve $(ARGS)

# The files of the console, where its sources have changed. It needs npm's packages, and Node.js or the wheel of it.
console: $(VENV)/serve.stamp
	$(BIN)/python tools/console.py

# The same, but the service is started without it, and tested without its pages, where that is not possible.
try-console: $(VENV)/serve.stamp
	@$(BIN)/python tools/console.py --if-possible

# The picture in the README, by the tests of the pages. Needs Chromium (Debian: chromium).
console-picture: $(VENV)/dev.stamp console
	TUPLEGATE_CONSOLE_PICTURE=$(CURDIR)/docs/console.png $(PYTEST) --numprocesses 0 tests/console -k picture

# One and a half times as many requests a second, where there is a C compiler.
compile: $(COMPILED)/stamp

$(COMPILED)/stamp: $(shell find src -name '*.py' -o -name '*.pyx') tools/compile.py $(VENV)/dev.stamp
	$(BIN)/python tools/compile.py $(COMPILED)
	touch $@

PYTEST := $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder

test: $(VENV)/dev.stamp try-console
	$(PYTEST) $(ARGS)

# The service as a process, and hostile tenants.
LONG := tests/system tests/hostile
test-long: $(VENV)/dev.stamp try-console
	$(PYTEST) $(if $(findstring tests/,$(ARGS)),,$(LONG)) $(ARGS)

# Faults, dumps and transfers, browsers, the compiled package, engines of one's own, clients: each file says what it needs, and is skipped without it.
# Their data is on the disk, as that of a service is.
test-extended: export TUPLEGATE_TEST_DIR ?= /tmp
test-extended: $(VENV)/dev.stamp $(FAILOVER)/stamp try-console
	$(PYTEST) $(if $(findstring tests/,$(ARGS)),,tests/transfers tests/extended tests/console tests/javascript) $(ARGS)

# The part of them that is run for the last commit, with its data where that of the other tests is.
test-turn: $(VENV)/dev.stamp try-console
	@files="$$($(BIN)/python tools/turn.py)" && \
	  case "$$files" in *test_failover*) $(MAKE) $(FAILOVER)/stamp;; esac && \
	  $(PYTEST) $$files $(ARGS)

# Says in the message of the last commit which part that is. Do it last, before a change is landed.
turn: $(VENV)/dev.stamp
	$(BIN)/python tools/turn.py --take $(LANDED)

check: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check
	$(BIN)/python tools/sync_client.py --check
	$(BIN)/python tools/javascript_types.py --check
	$(BIN)/python tools/console.py --check --if-possible

format: $(VENV)/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(COMPILED)/stamp
	PYTHONPATH=$(CURDIR)/$(COMPILED) $(BIN)/python -m bench $(ARGS)

# Beside other ways to reach SQL over HTTP, which it installs into .peers/. Needs Node.js and npm; wrk is used if there.
bench-peers: $(COMPILED)/stamp
	PYTHONPATH=$(CURDIR)/$(COMPILED) $(BIN)/python -m bench.peers $(ARGS)

bench-tenancy: $(COMPILED)/stamp
	PYTHONPATH=$(CURDIR)/$(COMPILED) $(BIN)/python -m bench.tenancy $(ARGS)

# What it costs that each database has a server of its own: make bench-cells ARGS="100 1000".
bench-cells: $(COMPILED)/stamp
	PYTHONPATH=$(CURDIR)/$(COMPILED) $(BIN)/python -m bench.cells $(ARGS)

bench-growth: $(COMPILED)/stamp
	PYTHONPATH=$(CURDIR)/$(COMPILED) $(BIN)/python -m bench.growth $(ARGS)

# Where the time of a point read goes; with Linux's perf down to functions.
bench-profile: $(COMPILED)/stamp
	PYTHONPATH=$(CURDIR)/$(COMPILED) $(BIN)/python -m bench.profile $(ARGS)

bench-import: $(COMPILED)/stamp
	PYTHONPATH=$(CURDIR)/$(COMPILED) $(BIN)/python -m bench.imports $(ARGS)

bench-move: $(COMPILED)/stamp
	PYTHONPATH=$(CURDIR)/$(COMPILED) $(BIN)/python -m bench.moves $(ARGS)

# What it costs that several service processes share one engine.
bench-processes: $(COMPILED)/stamp
	PYTHONPATH=$(CURDIR)/$(COMPILED) $(BIN)/python -m bench.processes

# On one node of CockroachDB: make bench-cockroach ARGS="--engine-binary /path/to/cockroach".
bench-cockroach: $(COMPILED)/stamp
	PYTHONPATH=$(CURDIR)/$(COMPILED) $(BIN)/python -m bench.cockroach $(ARGS)

# Pins the peers that come from PyPI. Needs `uv` on the path.
requirements-peers:
	for peer in datasette fastapi granian uvicorn; do \
	  uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	    --no-header --upgrade bench/peers/packages/$$peer/requirements.in -o bench/peers/packages/$$peer/requirements.txt; \
	done

# A long run with faults: make torture ARGS="--transactions 200000 --seed 7"; --help shows the rest. With
# --engine-binary /path/to/cockroach it is one on a cluster of CockroachDB.
torture: $(VENV)/dev.stamp
	$(BIN)/python -m torture $(ARGS)

# A hostile tenant beside two others: make attack ARGS="--seed 7 --minutes 10 --only NAME"; --help shows the rest. With
# --beside uvicorn granian, floods are run against those servers too, which it installs into .peers/.
attack: $(VENV)/dev.stamp
	$(BIN)/python -m attack $(ARGS)

# A cluster that fails over behind two service nodes: make failover ARGS="--seed 7 --only switchover,kill"; --help shows
# the rest. It installs Patroni into .failover/; etcd must be on the path (Debian: etcd-server).
failover: $(VENV)/dev.stamp $(FAILOVER)/stamp
	$(BIN)/python -m failover $(ARGS)

$(FAILOVER)/stamp: requirements/failover.txt
	$(PYTHON) -m venv --clear $(FAILOVER)
	$(FAILOVER)/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes -r requirements/failover.txt
	touch $@

# Pins what pyproject.toml asks for. Needs `uv` on the path.
requirements:
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --upgrade pyproject.toml -o requirements/serve.txt
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --upgrade pyproject.toml --group dev -o requirements/dev.txt
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --upgrade tests/generators/python/requirements.in -o tests/generators/python/requirements.txt
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --upgrade requirements/failover.in -o requirements/failover.txt
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --upgrade requirements/console.in -o requirements/console.txt

clean:
	rm -rf $(VENV) $(FAILOVER) build .peers console/node_modules src/tuplegate/console/built .mypy_cache .ruff_cache .hypothesis
