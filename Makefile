# `make demo` and `make test` are all a fresh machine needs; the rest are their parts.
PYTHON ?= python3
BIN := .venv/bin
export VOUCH_PORT ?= 8080
# What pytest has compiled is kept, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest
FIND_COMMANDS := Installed. To run vouch-build and vouch-serve by name: source $(BIN)/activate
SIDE_BY_SIDE := $(MAKE) --no-print-directory --jobs 4 --output-sync=target

.PHONY: install demo check check-builder check-others test coverage lint types \
  style audit sbom bench bench-promises bench-outliers \
  bench-first-answers bench-uncertainty bench-label-free bench-decide bench-builds bench-encoders bench-posteriors bench-zero-shot bench-decision \
  bench-throughput bench-load bench-gallery bench-ten-million bench-gpu bench-tenants bench-milvus bench-page bench-filters bench-roll-up \
  bench-review bench-unknown bench-indexing \
  bench-poison element fuzz-images mutants crash-indexing crash-writes linearizability torture \
  ray-indexing soak test-milvus try-compose try-fiftyone try-azurite pictures tables docs clean
.DEFAULT_GOAL := help

help:
	@echo "make demo      install, build a gallery of photographs, serve it at http://127.0.0.1:$(VOUCH_PORT)/"
	@echo "make check     install, lint, run the tests that take less than a second each; a minute"
	@echo "make test      install, lint, run the whole suite"
	@echo "make coverage  branch coverage of model_store and service by their own tests; at least 95 %"
	@echo "make bench     measure, and write build/bench.json"
	@echo "make bench-posteriors, bench-zero-shot, bench-decision   the README's tables; an hour each"
	@echo "make bench-first-answers   the first recipe on new photographs, over HTTP; half an hour"
	@echo "make bench-uncertainty     what the uncertainties tell, on five data sets; a quarter of an hour"
	@echo "make bench-promises   what came true of promises, in worlds whose truth is known; an hour"
	@echo "make bench-outliers   the outlier score beside its best single signal; ten minutes"
	@echo "make bench-label-free   galleries calibrated by views of their items; five minutes"
	@echo "make bench-decide  decisions on another store's neighbours, beside other ways; twelve minutes"
	@echo "make bench-encoders   int8 and half precision, and a posterior on 100,000 images; six minutes"
	@echo "make bench-roll-up   ambiguous queries where labels have parents; ten minutes"
	@echo "make bench-review   decisions in the review queue's order, beside random ones; minutes"
	@echo "make bench-unknown   queries of absent labels, grouped and enrolled; an hour the first time"
	@echo "make bench-throughput   queries a second under load, beside a bare loop and plain FastAPI"
	@echo "make bench-load   latency and goodput up to five times the capacity, and two cores over one; 15 minutes"
	@echo "make bench-gallery   galleries up to a million items, and beside other engines; ten minutes"
	@echo "make bench-ten-million   ten million items beside a million: built, searched, written to; two hours"
	@echo "make bench-gpu     the encoder on CUDA and TensorRT, fits, training and the service; an hour on a GPU"
	@echo "make test-milvus   galleries in Milvus against the real server; ten minutes"
	@echo "make bench-tenants a thousand galleries on one service, beside one of a million items; ten minutes"
	@echo "make bench-milvus  a million items in the real server, beside files and pymilvus; half an hour"
	@echo "make bench-filters   filters never asked before on a million items; ten minutes"
	@echo "make bench-indexing  images indexed a second, beside what the cores could do; minutes"
	@echo "make crash-indexing  kill -9 of the indexer at 50 moments; a quarter of an hour"
	@echo "make ray-indexing  the same bundle from a Ray whose workers are killed; a minute"
	@echo "make bench-page  first paint, scrolling, Lighthouse, and pictures of a visit; some minutes"
	@echo "make element   the page's search as an npm package, build/vouch-search-*.tgz"
	@echo "make bench-poison  good requests lost to a bad neighbour: here, and with LitServe; a minute"
	@echo "make soak      a quarter of an hour of load, hot swaps and Redis restarts"
	@echo "make crash-writes  a service killed 50 times while it is written to; ten minutes"
	@echo "make linearizability  two services on one gallery, compacted, exchanged, killed; ten minutes"
	@echo "make torture   every attacker, SEED=number, a quarter of an hour (MINUTES=number)"
	@echo "make try-compose   three replicas in Docker: written to, killed, exchanged; some minutes"
	@echo "make try-fiftyone  the plugin in FiftyOne, in an environment of its own; minutes"
	@echo "make try-azurite   images in a container of Azure, by Microsoft's emulator; a minute"
	@echo "make mutants   40 small faults put into the code, one at a time: which do the tests see? half an hour"
	@echo "make fuzz-images   10,000 hostile files over HTTP; some minutes"
	@echo "make pictures  the pictures of the README"
	@echo "make docs      the documentation site, in build/docs/index.html; half a minute"
	@echo "make bench-builds  the evaluation of bundles/digits and bundles/fashion-mnist"
	@echo "make tables    the JSON schema of builds, the table of figures in the README"
	@echo "make install   make .venv with everything for development"
	@echo "make lint      format, lint, types, import contracts, dependencies, dead code, the lock file"
	@echo "make audit     known vulnerabilities of what uv.lock names, from OSV where it can be reached"
	@echo "make sbom      what uv.lock names as CycloneDX, in build/sbom.cdx.json"

install: .venv/.installed-dev
# All at once. What needs torch and what never imports it are tested side by side: reading all tests
# takes half a minute of a processor, and each process reads those of its half alone. Every test of
# the folders left out starts a process.
check: install
	@$(SIDE_BY_SIDE) types check-builder check-others style
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
	@$(SIDE_BY_SIDE) types style
# mypy gives its workers three seconds to start. On a busy machine they take longer, and it ends with
# status 2: then one process checks all.
types: install
	$(BIN)/mypy --num-workers 2 || { [ $$? -eq 2 ] && $(BIN)/mypy; }
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

bench: install
	$(BIN)/python -m tests.benchmarks

bench-posteriors bench-zero-shot bench-decision bench-throughput bench-first-answers bench-uncertainty bench-indexing bench-label-free bench-decide bench-builds bench-encoders bench-filters bench-roll-up bench-review bench-unknown bench-milvus: bench-%: install
	$(BIN)/python -m tests.benchmarks.bench_$(subst -,_,$*)

bench-load: install
	$(BIN)/python -m tests.benchmarks.bench_load --chart .github/pictures/load.svg

bench-promises: install
	$(BIN)/python -m tests.benchmarks.bench_promises

bench-outliers: install
	$(BIN)/python -m tests.benchmarks.outlier_regret

# The suite runs it against milvus-lite.
test-milvus: install
	OMP_NUM_THREADS=1 VOUCH_TEST_MILVUS=server $(BIN)/pytest tests/model_store/test_milvus_gallery.py \
	  tests/model_store/test_milvus_filters.py tests/model_store/test_milvus_live.py tests/end_to_end/test_milvus.py

bench-gpu: install
	$(BIN)/python -m tests.benchmarks.bench_gpu

bench-ten-million: install
	$(BIN)/python -m tests.benchmarks.bench_ten_million

bench-gallery: install
	$(BIN)/uv sync --quiet --frozen --inexact --extra bench
	$(BIN)/python -m tests.benchmarks.bench_gallery --peers

# MUTANTS="--seed 2 --number 20 --rooms decision", for example; see tests/mutants.
mutants: install
	$(BIN)/python -m tests.mutants $(MUTANTS)

fuzz-images: install bundles/digits/CURRENT
	$(BIN)/python -m tests.torture.fuzz_images bundles/digits

crash-indexing: install bundles/digits/CURRENT
	$(BIN)/python -m tests.torture.crash_indexing bundles/digits

ray-indexing: install bundles/digits/CURRENT
	$(BIN)/python -m tests.torture.ray_indexing bundles/digits

bench-tenants: install bundles/digits/CURRENT
	$(BIN)/python -m tests.benchmarks.bench_tenants bundles/digits

bench-page: install bundles/digits/CURRENT .venv/.browser
	$(BIN)/python -m tests.benchmarks.bench_page bundles/digits

element:
	@mkdir -p build
	cd service/client/element && npm ci --no-audit --no-fund --ignore-scripts && npm pack --pack-destination $(CURDIR)/build

bench-poison: install bundles/digits/CURRENT
	$(BIN)/python -m tests.torture.poison bundles/digits

soak: install bundles/digits/CURRENT
	$(BIN)/python -m tests.torture.soak bundles/digits

crash-writes: install bundles/digits/CURRENT
	$(BIN)/python -m tests.torture.crash_writes bundles/digits

tables: install
	$(BIN)/python -c "from index_builder.configuration.file import schema_file; from index_builder.configuration.schema import SCHEMA_FILE; SCHEMA_FILE.write_text(schema_file(), 'utf-8')"
	$(BIN)/python -m tests.benchmarks.measured

# Warnings are errors: links and anchors that lead nowhere are among them. No network is needed.
docs: install
	$(BIN)/python -m sphinx -W --keep-going --quiet -b html -d build/doctrees docs build/docs
	@echo "The site is in build/docs/index.html"

pictures: install bundles/demo/CURRENT .venv/.browser
	$(BIN)/python -m tests.readme.pictures bundles/demo .github/pictures

linearizability: install bundles/digits/CURRENT
	$(BIN)/python -m tests.torture.linearizability bundles/digits

torture: install bundles/digits/CURRENT .venv/.browser
	$(BIN)/python -m tests.torture bundles/digits $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

try-compose: install
	$(BIN)/python -m tests.torture.try_compose

# Azurite, Microsoft's emulator, is 190 MB of Node.js: too much for every run of the tests.
try-azurite: install
	npm install --silent --no-audit --no-fund --prefix build/azurite azurite@3
	VOUCH_AZURITE=$(CURDIR)/build/azurite/node_modules/.bin/azurite-blob \
	  $(BIN)/pytest tests/index_builder/indexing/test_remote_sources.py -k other_clouds

# FiftyOne pins its web framework, so it does not go where the service is. It fetches a MongoDB when it
# is installed; without the internet FIFTYONE_DATABASE_URI names one that runs.
try-fiftyone: install
	$(BIN)/uv venv --quiet --allow-existing build/fiftyone
	$(BIN)/uv pip install --quiet --python build/fiftyone/bin/python "fiftyone>=1.22" "httpx2>=2.0"
	VOUCH_FIFTYONE_PYTHON=$(CURDIR)/build/fiftyone/bin/python $(BIN)/pytest tests/end_to_end/test_fiftyone.py

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
	$(BIN)/uv sync --quiet --frozen --inexact --extra service --extra builder
	@touch $@
	@echo "$(FIND_COMMANDS)"

# The tests start hundreds of processes: half a minute of compiling beforehand saves each of them
# seconds where PYTHONDONTWRITEBYTECODE is set.
.venv/.installed-dev: pyproject.toml uv.lock | .venv/bin/uv
	$(BIN)/uv sync --quiet --frozen --inexact --compile-bytecode --extra dev --group docs
	@touch $@ .venv/.installed
	@echo "$(FIND_COMMANDS)"

# The page is tested in a real browser: the system's Chromium, or one that Playwright downloads.
# Without either those tests say that they were skipped.
.venv/.browser: .venv/.installed-dev
	@command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null \
	  || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	  || $(BIN)/playwright install --only-shell chromium \
	  || echo "no browser could be installed: the page's tests will be skipped"
	@touch $@
