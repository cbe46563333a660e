# make demo    the whole pipeline on simulated data, a few minutes; with SOURCE=pelican the same files come from a
#              Pelican federation that runs meanwhile on this machine (needs XRootD: it says which packages);
#              with WORKLOAD=direction the directions of neutrinos instead of muon bundles, with WORKLOAD=xec gammas
#              in liquid xenon, with WORKLOAD=cascade muon bundles from cascades of hadrons
# make try-iceaggr   230 steps of the best network of iceaggr on a simulated file; minutes on one core
# make test    what to run after a change: every step, the errors, the promises and the structure; a few minutes
# make test-all   the tests that test leaves out: slow ones, and those with the real Snakemake, XRootD and Slurm
# make check   format, lint, types, the workflow's lint, test and test-all. CI (.ci/run) runs this, test-clean-install
#              and the demos
# make golden  write tests/golden/products.txt and words.txt anew, after a change that means to change them
# make test-clean-install   build the wheel, install it without extras into an environment of its own, and train
#              there on tiny data
# make test-container   run the steps of container/install in a bare Debian root file system, and a campaign there;
#              as root, with mmdebstrap; a quarter of an hour
# make test-slurm   everything that a cluster does to a campaign, on a Slurm of its own; a quarter of an hour
# make fuzz    damaged and malformed files of every kind: FUZZ_CASES=N (5000) of them, chosen by FUZZ_SEED=S (1)
# make test-kills   KILLS=N (200) kills of running campaigns, ten of each other workload's, and CUTS=N (200) power cuts
#              of each verb, chosen by KILL_SEED=S (1)
# make test-file-systems   a campaign on a bindfs mount, and one whose deleted files get the hidden names of NFS
# make test-faults   each file operation of each verb fails once with each errno that it can give: FAULTS=N (0: all, days;
#              6000) of the cases, chosen by FAULT_SEED=S (1); writes docs/file-operations.md
# make test-small   errors of the AUCs over 100 seeds of the demo's size, FLOORS=N; a quarter of an hour
# make test-physics what a model has to reach on simulated events, and muons beside public ones; an hour
# make test-jetnet  the distances beside those of JetNet
# make soak    one training of SOAK_STEPS=N (20000) steps, watched for growing memory, open files and threads
# make test-htcondor   what a pool does to a campaign, on an HTCondor of its own in a Debian root; half an hour, as root
# make test-numerics   operations and trainings with two C libraries, in two Debian roots by debootstrap; as root
# make audit   known vulnerabilities of the pinned versions; fails where no advisories can be reached
# make bench   every comparison with other systems, some twenty minutes on a machine with nothing else to do; clones
#              of others with PEERS="cr_muons=PATH iceaggr=PATH xec-ml-wl=PATH"
# make gpu     what crpipe does on an NVIDIA GPU: a checklist in four parts of at most ten minutes each, and a table;
#              other systems with GPU_OPTIONS="--peer cr_muons=PATH iceaggr=PATH xec-ml-wl=PATH"; without a GPU
#              GPU_OPTIONS="--device cpu --small" rehearses it
# make docs    the documentation as a site: docs/_build/html/index.html
# make nightly all that is too long for CI, one after the other; a table at the end says what failed. A night long
#
# PYTHON   the interpreter the environment is made from (3.11 or later)
# TORCH    where pip finds torch, if not where everything else comes from. For one CUDA version, with the URL that
#          pytorch.org/get-started shows for it:  make install TORCH="--index-url URL"
# FEDERATION   with SOURCE=pelican, the folder of the federation; as root it must be one that everybody may enter
PYTHON ?= python3
TORCH ?=
SOURCE := synthetic
WORKLOAD := muons
FEDERATION ?= results/demo-pelican/federation
FUZZ_CASES ?= 5000
FUZZ_SEED ?= 1
SOAK_STEPS ?= 20000
NIGHTLY := fuzz test-damages test-numerics test-kills test-faults test-file-systems test-small test-slurm test-htcondor soak audit \
	test-physics test-benchmarks
PEERS ?=
GPU_OPTIONS ?=
KILLS ?= 200
CUTS ?= 200
KILL_SEED ?= 1
FLOORS ?= 100
FAULTS ?= 6000
FAULT_SEED ?= 1

# In the order of tests/support/long_tests.py.
# Three processes on two cores: one has the core of those that wait for servers, kills and clocks.
PYTEST = $(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder

# Its slow tests are part of test-all, all others of test.
TESTS := tests/unit tests/properties tests/fuzz tests/outside src/crpipe/contract

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
DEMO := $(if $(filter-out muons,$(WORKLOAD)),$(WORKLOAD)-)demo
SETTINGS := config/$(DEMO).yaml

.PHONY: test-file-systems test-faults test-numerics test-htcondor
.PHONY: demo try-iceaggr known-demo demo-synthetic demo-pelican test test-all fuzz nightly test-damages test-kills test-small test-slurm test-htcondor soak audit
.PHONY: golden bench gpu docs test-physics test-jetnet test-clean-install test-container check install clean

demo: demo-$(SOURCE)

# asked before the environment is made
known-demo:
	@$(if $(wildcard $(SETTINGS)),,$(error WORKLOAD=$(WORKLOAD): there is no demo of it, $(SETTINGS)))

demo-synthetic: known-demo $(READY)
	$(BIN)/snakemake --configfile $(SETTINGS)
	$(BIN)/snakemake --configfile $(SETTINGS) --report runs/$(DEMO)/snakemake-report.html --quiet all
	@$(BIN)/crpipe --config config/config.yaml --config $(SETTINGS) report
	@$(BIN)/crpipe --config config/config.yaml --config $(SETTINGS) summary

# 233 steps of the best network of iceaggr on a file of the demo of directions.
try-iceaggr: $(READY)
	$(BIN)/snakemake train_all --cores 2 --configfile config/direction-demo.yaml config/presets/iceaggr-best.yaml config/iceaggr-try.yaml

demo-pelican: $(READY)
	$(if $(filter demo,$(DEMO)),,$(error SOURCE=pelican: only with WORKLOAD=muons))
	workflow/scripts/demo-pelican $(BIN) $(FEDERATION)

test: $(READY)
	$(PYTEST) -m "not slow" $(TESTS)

test-all: $(READY)
	$(PYTEST) -m slow --ignore tests/integration/test_slurm_failures.py tests/golden tests/integration \
		$$(grep -rlw slow --include='test_*.py' $(TESTS))

# outside of the clone, as the test does it: some messages name the nearest campaign
golden: $(READY)
	folder=$$(mktemp -d) && OMP_NUM_THREADS=1 PYTHONPATH=src $(BIN)/python tests/golden/yardstick.py $$folder && \
	  cp $$folder/products.txt $$folder/words.txt tests/golden && rm -r $$folder

fuzz: $(READY)
	FUZZ_CASES=$(FUZZ_CASES) FUZZ_SEED=$(FUZZ_SEED) $(BIN)/python -m pytest -s -q tests/fuzz

test-slurm: $(READY)
	$(BIN)/python -m pytest -q -n 2 tests/integration/test_slurm_failures.py

test-htcondor: $(READY)
	$(BIN)/python -m pytest -s -q tests/nightly/test_htcondor.py

# Damages of any file of a campaign, each of which `crpipe check` has to find.
test-damages: $(READY)
	CRPIPE_DAMAGES=600 $(BIN)/python -m pytest -q tests/properties/test_check.py

soak: $(READY)
	SOAK_STEPS=$(SOAK_STEPS) $(BIN)/python -m pytest -s -q tests/nightly/test_soak.py

# pip-audit needs libraries that crpipe does not: an environment of its own.
audit: .venv-audit/.installed
	$(PYTHON) workflow/scripts/audit.py .venv-audit/bin/pip-audit constraints.txt

.venv-audit/.installed: Makefile
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/pip install -q pip-audit==2.10.1
	touch $@

nightly: $(READY)
	workflow/scripts/nightly $(NIGHTLY)

test-kills: $(READY)
	CRPIPE_KILLS=$(KILLS) CRPIPE_KILL_SEED=$(KILL_SEED) $(BIN)/python -m pytest -s -q tests/integration/test_kills.py
	CRPIPE_KILLS=$(KILLS) $(BIN)/python -m pytest -q -k killed_ten_times tests/integration/test_direction.py \
		tests/integration/test_xec.py
	CRPIPE_CUTS=$(CUTS) CRPIPE_CUT_SEED=$(KILL_SEED) $(BIN)/python -m pytest -s -q \
		tests/integration/test_power_cuts.py tests/integration/federation/test_login_power_cuts.py

test-faults: $(READY)
	FAULTS=$(FAULTS) FAULT_SEED=$(FAULT_SEED) FAULT_TABLE=docs/file-operations.md \
		$(BIN)/python -m pytest -s -q tests/integration/test_faults.py

test-file-systems: $(READY)
	CRPIPE_NFS=1 $(BIN)/python -m pytest -s -q tests/integration/test_file_systems.py tests/unit/core/test_removal.py

test-numerics: $(READY)
	$(BIN)/python -m pytest -s -q tests/nightly/test_numerics.py

test-small: $(READY)
	FLOORS=$(FLOORS) $(BIN)/python -m pytest -s -q tests/nightly/test_floors.py

test-physics: $(READY) .venv-showers/.installed
	$(BIN)/python -m pytest -s -q tests/physics

# Files of others with showers, and what reads them: 80 MB that nothing else needs.
.venv-showers/.installed: Makefile
	$(PYTHON) -m venv .venv-showers
	.venv-showers/bin/pip install -q corsikaio==0.6.1 km3net_testdata==0.4.31 numpy==2.4.6
	touch $@

# Each benchmark in its smallest form: that it runs at all.
test-benchmarks: $(READY)
	$(BIN)/python -m pytest -s -q tests/nightly/test_benchmarks.py

test-clean-install:
	PYTHON="$(PYTHON)" TORCH="$(TORCH)" workflow/scripts/test-clean-install

test-container:
	PYTHON="$(PYTHON)" TORCH="$(TORCH)" workflow/scripts/test-container

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/snakemake --lint
	$(MAKE) test
	$(MAKE) test-all

# The readers that the loader is compared with stay out of the environment that users get.
bench: .venv-bench/.installed
	.venv-bench/bin/python -m benchmarks all $(if $(PEERS),--peer $(PEERS))

gpu: $(READY)
	$(BIN)/python -m benchmarks gpu $(GPU_OPTIONS)

.venv-bench/.installed: constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv-bench
	$(if $(TORCH),.venv-bench/bin/pip install -q -c constraints.txt torch $(TORCH))
	.venv-bench/bin/pip install -q -c constraints.txt -e '.[all,bench]'
	touch $@

docs: $(READY)
	$(BIN)/sphinx-build -W --keep-going -q docs docs/_build/html
	@echo docs/_build/html/index.html

# JetNet goes with older libraries than crpipe: the test asks it in an environment of its own.
test-jetnet: $(READY) .venv-jetnet/.installed
	$(BIN)/python -m pytest -q tests/jetnet

.venv-jetnet/.installed: Makefile
	$(PYTHON) -m venv .venv-jetnet
	.venv-jetnet/bin/pip install -q jetnet==0.2.5 numpy==1.26.4 pyarrow==20.0.0 scipy==1.15.3 torch==2.13.0
	touch $@

install: $(READY)

$(READY): constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(if $(TORCH),$(BIN)/pip install -q -c constraints.txt torch $(TORCH))
	$(BIN)/pip install -q -c constraints.txt -e '.[all,test,check,docs]'
	touch $(READY)

# Never results or runs: they may be weeks of work.
clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
