# app    open the web app (makes .venv on the first run)
# test   lint, then every test
# lint   ruff and mypy
# docs   the pages and the API reference as a site, in build/docs
# bench  the benchmarks of the reference
# live   random operations on the real llama.cpp and on kvsim: 100,000 a memory, an hour or two; goes on where it was
#        stopped (LIVE=--ops 500: a minute)
# museum look for every public fault of the museum with the tester
# clean  remove everything the other targets made

PYTHON ?= python3
JOBS   ?= 3
BIN    := .venv/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
TESTS  ?= tests
LIVE   ?= --ops 100000 --report build/live.jsonl
FIND_BROWSER := command -v chromium || command -v chromium-browser || command -v google-chrome

# a module is compiled when it is first imported, and kept, whatever the environment says: most of what is installed
# never is, and the tests start hundreds of processes
export PYTHONDONTWRITEBYTECODE :=

.PHONY: app test lint docs bench museum live browser clean

app: .venv/app.done
	$(BIN)/kvsim app

# three processes for two cores: half the time of a test with a browser is spent waiting for it; each wants one thread, or
# they wait for one another
test: lint browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder \
		-m "$$({ $(FIND_BROWSER); } >/dev/null || echo 'not browser')" $(TESTS)

lint: .venv/dev.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# a site without a warning; nothing is fetched
docs: .venv/docs.done
	rm -rf build/docs docs/api docs/lessons docs/lessons.md
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs
	@echo build/docs/index.html

bench: .venv/dev.done
	OMP_NUM_THREADS=1 $(BIN)/kvsim bench cells
	OMP_NUM_THREADS=1 $(BIN)/kvsim bench tensors

live: .venv/dev.done
	OMP_NUM_THREADS=1 $(BIN)/python -m kvsim.lanes.campaign $(LIVE)

museum: .venv/dev.done
	$(BIN)/kvsim museum

browser:
	@if { $(FIND_BROWSER); } >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	else \
		echo "No browser found, so the tests that drive one are left out." \
			"To run them, install chromium (Debian: apt-get install chromium)." >&2; \
	fi

clean:
	rm -rf .venv build dist docs/api docs/lessons docs/lessons.md *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "kvsim needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv .venv

# what was installed is installed again only when these two files change
.venv/app.done: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[app]'
	@touch $@

.venv/dev.done: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[dev,engine,llamacpp,bench,cluster,fuzz]'
	@touch $@ .venv/app.done

.venv/docs.done: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[docs]'
	@touch $@
