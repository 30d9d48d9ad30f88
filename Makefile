# `make demo` and `make test` are all a fresh machine needs; the rest are their parts.
PYTHON ?= python3
BIN := .venv/bin
export VOUCH_PORT ?= 8080
# What pytest has compiled is kept, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest
FIND_COMMANDS := Installed. To run vouch-build and vouch-serve by name: source $(BIN)/activate
ELEMENT := service/client/element
NPM := cd $(ELEMENT) && PATH="$(CURDIR)/$(BIN):$$PATH" npm
SIDE_BY_SIDE := $(MAKE) --no-print-directory --jobs 4 --output-sync=target

.PHONY: install demo check check-builder check-others test coverage lint types page-types style audit sbom version dist chart \
  bench torture mutants try element pictures tables docs clean help
.DEFAULT_GOAL := help

names_of = $(sort $(subst _,-,$(patsubst $(1)%.py,%,$(wildcard $(1)*.py))))
BENCHES := $(call names_of,tests/benchmarks/bench_)
TORTURES := crash-decisions crash-indexing crash-writes fuzz-images linearizability poison ray-indexing soak
TRIALS := azurite compose fiftyone milvus
# Exits with what there is, unless $(1), the NAME, is among them: $(2).
one_of = $(if $(filter $(1),$(2)),,$(error NAME=$(1) is none of: $(2)))

help:
	@echo "make demo      install, build a gallery of photographs, serve it at http://127.0.0.1:$(VOUCH_PORT)/"
	@echo "make check     install, lint, run the tests that take less than a second each; a minute"
	@echo "make test      install, lint, run the whole suite; a quarter of an hour"
	@echo "make docs      the documentation site, in build/docs/index.html; two minutes"
	@echo "make coverage  branch coverage of model_store and service by their own tests; at least 95 %"
	@echo "make lint      format, lint, types (the page's too), import contracts, dependencies, dead code, the lock file"
	@echo "make mutants   40 small faults put into the code, one at a time: which do the tests see? half an hour"
	@echo "make audit     known vulnerabilities of what uv.lock names, from OSV where it can be reached"
	@echo "make dist      wheel and sdist in build/dist, checked as a package index checks them; TAG=v0.3.0"
	@echo "               first writes that version, as make version TAG=v0.3.0 does alone"
	@echo "make chart     the Helm chart in build/chart; REGISTRY=oci://... pushes it"
	@echo "make sbom, element, pictures, tables    files that a release contains"
	@echo
	@echo "make bench     the short benchmarks, into build/bench.json; NAME=... one of them, with ARGS=..."
	@echo "  $(BENCHES)" | fold -s -w 98
	@echo "make torture   every attacker in turn, SEED=number MINUTES=number; NAME=... one program, with ARGS=..."
	@echo "  $(TORTURES)"
	@echo "make try       tests that need other software, which is installed; NAME=..."
	@echo "  $(TRIALS)"
	@echo "What each measures and how long it takes stands first in its file: tests/benchmarks, tests/torture."

install: .venv/.installed-dev
# All at once. What needs torch and what never imports it are tested side by side: reading all tests
# takes half a minute of a processor, and each process reads those of its half alone. Every test of
# the folders left out starts a process.
check: install
	@$(SIDE_BY_SIDE) types page-types check-builder check-others style
check-builder check-others: check-%: install
	$(PYTEST) --quiet -m "not bundle and not process and not slow" $(TESTS_$*) \
	  --ignore tests/end_to_end --ignore tests/torture
TESTS_builder := tests/index_builder tests/benchmarks
TESTS_others := tests --ignore tests/index_builder --ignore tests/benchmarks
# Four processes, since each waits for a service or a browser at times; each file in one of them.
test: lint .venv/.browser
	$(PYTEST) --numprocesses 4 --dist loadfile --no-loadscope-reorder
# What children of the service run in processes of their own is not counted.
coverage: install
	$(PYTEST) --quiet --numprocesses 2 --dist worksteal tests/model_store tests/service \
	  --cov --cov-report=term:skip-covered --cov-fail-under=95
demo: .venv/.installed bundles/demo/CURRENT
	@echo "Vouch is at http://127.0.0.1:$(VOUCH_PORT)/ once its startup is complete; Ctrl+C ends it."
	VOUCH_FEEDBACK=$${VOUCH_FEEDBACK-build/feedback.sqlite3} $(BIN)/vouch-serve --bundle bundles/demo

lint: install
	@$(SIDE_BY_SIDE) types page-types style
# mypy gives its workers three seconds to start. On a busy machine they take longer, and it ends with
# status 2: then one process checks all.
types: install
	$(BIN)/mypy --num-workers 2 || { [ $$? -eq 2 ] && $(BIN)/mypy; }
# The page's scripts, with the types of the API.
page-types: $(ELEMENT)/node_modules/.package-lock.json
	$(NPM) run --silent types
style: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/deptry .
	$(BIN)/vulture
	$(BIN)/uv lock --check --quiet --offline

# Exit status 1: something is known of a locked package; 2: nothing could be asked.
audit: | .venv/bin/uv
	@$(BIN)/uv audit --quiet --preview-features audit-command --frozen || { [ $$? -ne 1 ] && echo "NOT AUDITED: no database of known vulnerabilities (OSV) can be reached."; }

sbom: | .venv/bin/uv
	@mkdir -p build
	$(BIN)/uv export --quiet --frozen --preview-features sbom-export --format cyclonedx1.5 --all-extras --output-file build/sbom.cdx.json
	$(BIN)/python .ci/licences.py build/sbom.cdx.json

# A name is a file: tests/benchmarks/bench_<name>.py. Its own options follow in ARGS.
ARGS_gallery := --peers
ARGS_load := --chart .github/pictures/load.svg
ARGS_http := bundles/digits
ARGS_overhead := bundles/digits
ARGS_page := bundles/digits
ARGS_tenants := bundles/digits
ARGS_workers := bundles/digits
NEEDS_page := .venv/.browser
bench: install $(if $(NAME),bundles/digits/CURRENT $(NEEDS_$(NAME)))
	$(if $(NAME),$(call one_of,$(NAME),$(BENCHES)))
	$(if $(filter gallery,$(NAME)),$(BIN)/uv sync --quiet --frozen --inexact --extra bench)
	$(BIN)/python -m tests.benchmarks$(if $(NAME),.bench_$(subst -,_,$(NAME)) $(or $(ARGS),$(ARGS_$(NAME))))

# MUTANTS="--seed 2 --number 20 --rooms decision", for example; see tests/mutants.
mutants: install
	$(BIN)/python -m tests.mutants $(MUTANTS)

# The tag of a release is its version: nothing else of a release has to be edited.
HATCHLING ?= $(BIN)/uv tool run --quiet 'hatchling>=1.27'
version: .venv/bin/uv
	$(if $(TAG),$(HATCHLING) version $(TAG:v%=%),$(error Give the tag, such as TAG=v0.3.0))

dist: install $(if $(TAG),version)
	rm -rf build/dist
	$(BIN)/python -m hatchling build -d build/dist
	$(BIN)/python -m twine check --strict build/dist/*
	$(BIN)/check-wheel-contents build/dist

HELM ?= helm
CHARTS ?= build/chart
chart:
	$(HELM) package docker/helm/vouch --destination $(CHARTS) $(if $(TAG),--version $(TAG:v%=%) --app-version $(TAG))
	$(if $(REGISTRY),$(HELM) push $(CHARTS)/vouch-*.tgz $(REGISTRY))

element: $(ELEMENT)/node_modules/.package-lock.json
	@mkdir -p build
	$(NPM) pack --pack-destination $(CURDIR)/build

tables: install
	$(BIN)/python -c "from index_builder.configuration.file import schema_file; from index_builder.configuration.schema import SCHEMA_FILE; SCHEMA_FILE.write_text(schema_file(), 'utf-8')"
	$(BIN)/python -m tests.benchmarks.measured

# Warnings are errors: links and anchors that lead nowhere are among them. No network is needed.
# The notebooks are run; the demo's gallery that they build is built anew.
docs: install
	rm -rf build/notebooks
	$(BIN)/python -m sphinx -W --keep-going --quiet -b html -d build/doctrees docs build/docs
	@echo "The site is in build/docs/index.html"

pictures: install bundles/demo/CURRENT .venv/.browser
	$(BIN)/python -m tests.readme.pictures bundles/demo .github/pictures

torture: install bundles/digits/CURRENT .venv/.browser
	$(if $(NAME),$(call one_of,$(NAME),$(TORTURES)))
	$(BIN)/python -m tests.torture$(if $(NAME),.$(subst -,_,$(NAME))) \
	  $(if $(filter crash-decisions,$(NAME)),,bundles/digits) \
	  $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(ARGS)

# compose: three replicas in Docker, written to, killed, exchanged. milvus: the real server; the suite
# runs milvus-lite. azurite: Microsoft's emulator, 190 MB of Node.js. fiftyone: pins its web framework, so
# it has an environment of its own; it fetches a MongoDB, unless FIFTYONE_DATABASE_URI names one.
TRY_compose = $(BIN)/python -m tests.torture.try_compose
TRY_milvus = OMP_NUM_THREADS=1 VOUCH_TEST_MILVUS=server $(BIN)/pytest $(wildcard tests/model_store/test_milvus_*.py) \
  tests/end_to_end/test_milvus.py
TRY_azurite = npm install --silent --no-audit --no-fund --prefix build/azurite azurite@3 \
  && VOUCH_AZURITE=$(CURDIR)/build/azurite/node_modules/.bin/azurite-blob \
  $(BIN)/pytest tests/index_builder/indexing/test_remote_sources.py -k other_clouds
TRY_fiftyone = $(BIN)/uv venv --quiet --allow-existing build/fiftyone \
  && $(BIN)/uv pip install --quiet --python build/fiftyone/bin/python "fiftyone>=1.22" "httpx2>=2.0" \
  && VOUCH_FIFTYONE_PYTHON=$(CURDIR)/build/fiftyone/bin/python $(BIN)/pytest tests/end_to_end/test_fiftyone.py
try: install
	$(call one_of,$(NAME),$(TRIALS))
	$(TRY_$(NAME))

clean:
	rm -rf .venv build bundles runs

bundles/demo/CURRENT: | .venv/.installed
	$(BIN)/vouch-build all --config docs/demo/photographs.toml

bundles/digits/CURRENT: | .venv/.installed
	$(BIN)/vouch-build all --config digits

# uv resolves and installs several times faster than pip, and understands the same files.
.venv/bin/uv:
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check uv==0.13.9

# What uv.lock says, hashes checked; `--inexact` leaves uv itself and what else was installed.
.venv/.installed: pyproject.toml uv.lock | .venv/bin/uv
	$(BIN)/uv sync --quiet --frozen --inexact --extra serve --extra build --extra client --extra tables
	@touch $@
	@echo "$(FIND_COMMANDS)"

# The tests start hundreds of processes: half a minute of compiling beforehand saves each of them
# seconds where PYTHONDONTWRITEBYTECODE is set.
.venv/.installed-dev: pyproject.toml uv.lock | .venv/bin/uv
	$(BIN)/uv sync --quiet --frozen --inexact --compile-bytecode --extra dev --group docs --group deploy
	@touch $@ .venv/.installed
	@echo "$(FIND_COMMANDS)"

# What npm writes at the end of an installation.
$(ELEMENT)/node_modules/.package-lock.json: $(ELEMENT)/package-lock.json | .venv/.installed-dev
	$(NPM) ci --silent --no-audit --no-fund --ignore-scripts

# The page is tested in a real browser: the system's Chromium, or one that Playwright downloads.
# Without either those tests say that they were skipped.
.venv/.browser: .venv/.installed-dev
	@command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null \
	  || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	  || $(BIN)/playwright install --only-shell chromium \
	  || echo "no browser could be installed: the page's tests will be skipped"
	@touch $@
