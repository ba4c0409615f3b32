// Package host is the control plane: it wires the packages below it and runs
// them until told to stop. It holds no rule of its own.
//
// How data flows:
//
//	app SDK ──RegisterEndpoint──▶ api ─▶ session ─┐
//	app SDK ──ReportStats───────▶ api ─▶ service ─┼─▶ store: one transaction holds the change
//	operator ──SetFlag, …───────▶ api ─▶ service ─┤        and its audit entry
//	operator ──StartRollout─────▶ api ─▶ rollout ─┤          │ notice: look again
//	operator ──StartDeployment──▶ api ─▶ delivery ┘          │
//	                                                         ▼
//	SDK picker ◀─WatchConfig── api ◀── snapshot: build ▶ checksum ▶ encode once ▶ fan out
//
//	worker ──RegisterWorker, …──▶ api ─▶ pool ─▶ ownership (pure) ─▶ store
//	       ◀──WatchSnapshots──── api ◀── pool: build ▶ on record ▶ send
//	operator ──PublishConfig, …─▶ api ─┤   ▲ shares out, ends, plans: Pool.Run
//	caller ──POST /v1/extractions─▶ rest ┘   └─ supply: lists, credentials (in memory)
//
//	rollout: every second, Step(state, evidence, now) ──▶ weights, quarantine ──▶ store
//	             └─ Analyzer ──▶ plugins ──▶ analysis process (measures a signal)
//	delivery: every second, Step(state, evidence, now) ──▶ weights, or the start of a rollout ──▶ store
//	check: Judge(health of a service) ──▶ who leaves the snapshot, who comes back ──▶ store
//	    ├─ Checker ──claims, reports──▶ store; Prober ──▶ plugins ──▶ probe process (makes a check)
//	    └─ checkers elsewhere ──RegisterChecker, …──▶ api ──▶ claims, reports
//	service.Planner ─ Compiler ─▶ plugins ──▶ strategy process (compiles a plan) ──▶ store
//
// The packages, from the bottom up:
//
//   - limits, refusal: the numbers, the grammars, and how the host says no
//   - loopback, spawn: ports for tests and the demo, of which nobody else is given one,
//     and the processes of a demonstration
//   - store, store/embedded, store/redis: transactions; all state lives here;
//     store/datadir guards a host's directory
//   - audit: the hash chain, appended in the transaction that acts
//   - session: leases by stream and heartbeat, fences of reports
//   - snapshot: versioned feeds to any number of watchers
//   - check: which endpoints are well; tasks with leases, a pure Reduce and Judge,
//     and this host's checker
//   - service: endpoints, flags, weights, policy, plans, ingress, sharing; builds
//     the snapshot
//   - rollout: windows, the pure Step, the controller
//   - delivery: artifacts, releases, deployments; a pure Step and a controller too
//   - pool: the egress plane; below it ownership and health (the pure rules),
//     poolconfig, proxylist, secret, source and supply (what is configured, and what
//     that names), rest (extractions over HTTP)
//   - fsck: what a store holds, checked whole
//   - telemetry: calls and metrics by OTLP
//   - identity: who is who in the trust domain; issues certificates
//   - api: gRPC at the edge: who calls, what they may, what is theirs; the only one
//     that knows transport codes
//   - config: settings, read by config/strict; host: this wiring
//
// Four rules hold it together. State changes only in store transactions. Loops
// re-read what is, and take a notice only as a reason to look. A step written on
// an old version fails and changes nothing, so any host may take it. No request
// of a client waits for a plugin.
package host
