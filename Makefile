# Every target sets up what it needs. `make` alone lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

GO      ?= go
BIN     := bin
CACHE   := .cache
BUF     := $(CACHE)/npm/node_modules/.bin/buf
BUF_VER := 1.75.0
TOOL    := $(GO) tool -modfile=.ci/tools/go.mod

# What a race run and a coverage run leave out: generated code.
PKGS = $$($(GO) list ./... | grep -v '/proto/')

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the programs into bin/
	@mkdir -p $(BIN)
	$(GO) build -trimpath -o $(BIN)/ ./cmd/...

.PHONY: run
run: build ## the main job on this machine: a canary rolls out, a bad one rolls back
	@$(BIN)/dona demo

.PHONY: demo
demo: run ## the same as run

.PHONY: egress
egress: build ## the egress plane on this machine: curl through gateways while things are killed
	@$(GO) build -trimpath -o $(BIN)/ ./examples/egress
	@$(BIN)/egress -bin $(BIN)

.PHONY: test
test: build prometheus redis ## build and test everything, under 10 minutes on 2 cores
	@$(MAKE) --no-print-directory chromium || echo 'going on: what is tested with a browser is left out'
	$(GO) vet ./...
	cd examples/bench && $(GO) vet ./...
	$(GO) test -timeout 9m ./...

.PHONY: race
race: prometheus redis ## the tests under the race detector
	$(GO) test -race -parallel 3 -timeout 20m $(PKGS)

.PHONY: faults
faults: redis iproute chromium ## faults made on real processes; REPEAT=1 for many seeds
	$(GO) test -tags faults -count=1 -timeout 30m ./cmd/dona-host/... ./cmd/proxy-checker/... ./host/store/... ./host/audit/... ./host/rollout/... ./host/delivery/... ./host/pool/... ./plugins/... ./builtin/... ./cmd/dona/internal/scaffold ./examples/plugins ./examples/egress

.PHONY: fuzz-short
fuzz-short: ## each fuzz target for 20 seconds
	@$(GO) list ./... | while read -r pkg; do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "$$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime 20s $$pkg; \
	  done; done

.PHONY: bench
bench: redis ## figures beside their peers; JOB=name runs one
	cd examples/bench && $(GO) run . -job '$(JOB)' -write ../../docs/performance.md

.PHONY: bench-gateway
bench-gateway: proxies ## the gateway beside HAProxy, Squid and a program of net/http
	cd examples/bench && $(GO) run . -job gateway -write ../../docs/performance.md

.PHONY: cover
cover: prometheus redis ## test coverage, by package
	@mkdir -p $(CACHE)
	$(GO) test -timeout 9m -coverprofile=$(CACHE)/cover.out $(PKGS)
	$(GO) tool cover -func=$(CACHE)/cover.out | tail -1

.PHONY: lint
lint: ## gofmt, vet and the linters of .golangci.yml
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo 'run gofmt -w on these'; exit 1; }
	$(TOOL) golangci-lint run ./...

.PHONY: cross
cross: ## build for the other platforms
	GOOS=linux GOARCH=arm64 $(GO) build ./...
	GOOS=darwin GOARCH=arm64 $(GO) build ./...
	GOOS=windows GOARCH=amd64 $(GO) build ./sdk/... ./cmd/dona

.PHONY: proto
proto: $(BUF) ## generate Go code from the .proto files
	$(BUF) generate

.PHONY: docs
docs: ## write docs/api-control-plane.md and docs/api-egress.md from the contract and the code
	$(GO) run ./host/api/internal/apiref

.PHONY: proto-check
proto-check: $(BUF) ## generated code is fresh, nothing published breaks
	$(BUF) generate
	@git diff --exit-code -- proto || { echo 'generated code was not fresh: commit what make proto makes'; exit 1; }
	@test -z "$$(git status --porcelain -- proto)" || { git status --short -- proto; echo 'make proto makes files that are not committed'; exit 1; }
	$(BUF) breaking --against proto/baseline.binpb

.PHONY: proto-baseline
proto-baseline: $(BUF) ## at a release: what the next one must not break
	$(BUF) build -o proto/baseline.binpb

$(BUF):
	@command -v npm >/dev/null || { echo 'npm is needed for buf, the protobuf compiler: install Node.js'; exit 1; }
	npm install --no-fund --no-audit --loglevel=error --prefix $(CACHE)/npm @bufbuild/buf@$(BUF_VER)

.PHONY: prometheus
prometheus:
	@command -v prometheus >/dev/null || { \
	  command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus; } >$${TMPDIR:-/tmp}/dona-apt.log 2>&1; } || \
	  { echo 'the tests need a Prometheus server: install the package prometheus so that it is on the PATH'; exit 1; }

# Installed without being started: the tests start their own.
.PHONY: redis
redis:
	@{ command -v redis-server && command -v redis-sentinel; } >/dev/null || { \
	  command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends redis-server redis-sentinel; } >$${TMPDIR:-/tmp}/dona-apt.log 2>&1; } || \
	  { echo 'the tests need Redis: install redis-server and redis-sentinel so that they are on the PATH'; exit 1; }

.PHONY: iproute
iproute:
	@command -v ip >/dev/null || { \
	  command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends iproute2; } >$${TMPDIR:-/tmp}/dona-apt.log 2>&1; } || \
	  { echo 'the tests need ip(8) for networks of their own: install iproute2 so that it is on the PATH'; exit 1; }

.PHONY: chromium
chromium:
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome || command -v google-chrome-stable || command -v chromium-headless-shell; } >/dev/null || { \
	  command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends chromium; } >$${TMPDIR:-/tmp}/dona-apt.log 2>&1; } || \
	  { echo 'the tests of the egress plane need a browser: install the package chromium so that it is on the PATH'; exit 1; }

.PHONY: egress-clients
egress-clients: chromium ## curl, git, Go, Node.js and a browser through gateways and each kind of proxy
	@command -v npm >/dev/null || { echo 'npm is needed for a client: install Node.js'; exit 1; }
	npm install --no-fund --no-audit --no-package-lock --loglevel=error --prefix examples/egress/testdata/node
	EGRESS_CLIENTS=all $(GO) test -count=1 -run 'TestClients$$' ./examples/egress

# The gateway's peers, installed without being started.
.PHONY: proxies
proxies:
	@{ command -v haproxy && command -v squid; } >/dev/null || { \
	  command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends haproxy squid; } >$${TMPDIR:-/tmp}/dona-apt.log 2>&1; } || \
	  { echo 'the gateway is measured beside HAProxy and Squid: install haproxy and squid so that they are on the PATH'; exit 1; }

.PHONY: node-client
node-client: ## the Node.js example agrees with Go: buckets, checksums, decisions
	@command -v npm >/dev/null || { echo 'npm is needed for the example: install Node.js'; exit 1; }
	npm install --no-fund --no-audit --no-package-lock --loglevel=error --prefix examples/node-client
	$(GO) test -count=1 -run TestNode ./sdk/dona

.PHONY: node-plugin
node-plugin: ## the Node.js example of a plugin keeps the promises of one
	@command -v npm >/dev/null || { echo 'npm is needed for the example: install Node.js'; exit 1; }
	npm install --no-fund --no-audit --no-package-lock --loglevel=error --prefix examples/plugins/node-http
	$(GO) test -count=1 -run TestNode ./examples/plugins

.PHONY: clean
clean: ## remove what the targets made
	rm -rf $(BIN) $(CACHE) .dona
