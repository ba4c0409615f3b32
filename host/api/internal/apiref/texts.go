package main

import (
	"fmt"

	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/pool/poolconfig"
)

const introduction = `
# The control-plane API

The gRPC services ` + "`dona.v1.ControlPlane`" + ` and ` + "`dona.v1.HostAdmin`" + `: every call, who may make
it, what it is refused for, and what of it is durable and in the audit log. The
contract itself is in [proto/dona/v1](../proto/dona/v1); the [command line](cli.md) and the
SDK speak nothing else.

## For all calls

**Who may call.** A caller's identity gives it roles, and each call has a row in one
table: a call without a row, or without a role that the row names, is
PERMISSION_DENIED. With ` + "`--dev`" + ` everyone on loopback is ` + "`local:dev`" + `, with all roles.

**A refusal** is a gRPC status. Its text is at most 1 KiB: what was wrong, in which
field, what is allowed and what to do; it repeats at most 64 bytes of the request.
Details say the same to programs: ` + "`google.rpc.BadRequest`" + ` names the field,
` + "`google.rpc.ErrorInfo`" + ` of the domain ` + "`dona`" + ` has a reason, ` + "`google.rpc.RetryInfo`" + ` says
how long to wait. What is refused has changed nothing, unless the text says that the
outcome is unknown.

Where several refusals hold, the first of this list is given; that a message does not
parse may be found before anything else:

| code | when, beside what each call says |
|---|---|
| UNAUTHENTICATED | the caller has no identity |
| PERMISSION_DENIED | none of its roles may make this call. It does not say whether what the request names exists |
| UNAVAILABLE | the host waits for its store and has no control plane yet |
| RESOURCE_EXHAUSTED | the call is made more often than its row allows, or a message is larger |
| INVALID_ARGUMENT | the message does not parse; the request is wrong in itself |
| PERMISSION_DENIED | the caller may not do it to what the request names |
| NOT_FOUND | what the request names does not exist |
| FAILED_PRECONDITION | the state does not allow it now |
| ALREADY_EXISTS, ABORTED | the same name with other content; overtaken by something newer |
| RESOURCE_EXHAUSTED | a limit is reached; the text says which and how far |
| UNAVAILABLE | the store cannot be read or written; with the reason ` + "`audit`" + `, within 2 s: the audit entry could not be written |
| DEADLINE_EXCEEDED, CANCELLED | the deadline passed, or the caller went away |
| INTERNAL | a fault of the host; its log says which, the answer does not |

**Durability.** *Hard*: an answer means that the change and its audit entry are on
disk, in one transaction; neither exists without the other. When that takes longer
than 2 s the call is UNAVAILABLE with the reason ` + "`audit`" + `, and the text says whether
nothing was done or the outcome is unknown; the same request can be sent again.
*Soft*: the change is in force and on disk with the next flush. What that is worth on
Redis is in [operations.md](operations.md).

**Unknown** fields are ignored. Unknown values of an enumeration are refused where
they would decide something.
`

const egressIntroduction = `
# The API of the egress plane

The gRPC services ` + "`controlplane.v1.WorkerControlPlane`" + `, ` + "`CheckerControlPlane`" + ` and
` + "`PoolAdmin`" + `: every call, who may make it, what it is refused for, and what of it is durable
and in the audit log. How they work together is in [egress.md](egress.md); the contract
itself is in [proto/controlplane/v1](../proto/controlplane/v1). What holds for every call
of a host is said in [the reference of the control plane](api-control-plane.md#for-all-calls):
the order of refusals, their details, what *hard* and *soft* mean.

**Who may call.** A worker or checker speaks for the id in its certificate alone, and only
in the environment that the published configuration names, or else the host's: anything
else is PERMISSION_DENIED. Where a host speaks plaintext, which its configuration has to
say, the calls that answer with credentials of proxies go to loopback alone.

**Sessions.** What a worker sends carries its session. One that is not its current session
is FAILED_PRECONDITION, and nothing of what came with it counts: register again.
`

// limit is one row of the names and numbers that requests are held to.
type limit struct {
	what    string
	allowed any
}

var serviceLimits = []limit{
	{"service", fmt.Sprintf("1 to %d of `a-z 0-9 -`, beginning and ending with a letter or digit", limits.ServiceNameLen)},
	{"variant, region, zone, flag", fmt.Sprintf("1 to %d of `A-Z a-z 0-9 . _ -`, beginning with a letter or digit", limits.NameLen)},
	{"ids of endpoints, clients, reporters, rules", "as above, and `:`"},
	{"version of an artifact", "as a variant, and `+`"},
	{"digest of an artifact", "`sha256:` and 64 hex digits"},
	{"address", fmt.Sprintf("`host:port`, the host a DNS name of at most %d bytes or an IP address, the port 1 to 65535", limits.HostLen)},
	{"labels", fmt.Sprintf("%d, keys of at most %d bytes, values of %d", limits.Labels, limits.LabelKeyLen, limits.LabelValueLen)},
	{"text for people", fmt.Sprintf("UTF-8 without control characters; a reason at most %d KiB", limits.ReasonLen>>10)},
	{"services", limits.Services},
	{"endpoints of a service", limits.EndpointsPerService},
	{"flags of a service", limits.FlagsPerService},
	{"snapshot of a service", fmt.Sprintf("%d MiB encoded", limits.SnapshotBytes>>20)},
	{"regions of a rule", limits.RegionsPerRule},
	{"targeting rules of a flag", limits.TargetingRules},
	{"values of a targeting rule", fmt.Sprintf("%d, each at most %d bytes", limits.TargetingValues, limits.ValueLen)},
	{"patterns of a flag", fmt.Sprintf("%d steps together, about one for each character, repetitions counted out", limits.PatternSteps)},
	{"attribute of a targeting rule", fmt.Sprintf("%d bytes", limits.AttributeLen)},
	{"steps of a rollout", limits.RolloutSteps},
	{"step_seconds", fmt.Sprintf("%d to %d", limits.MinStepSeconds, limits.MaxStepSeconds)},
	{"min_requests", limits.MaxMinRequests},
	{"queries of a rollout", fmt.Sprintf("%d, each at most %d KiB, its URL %d KiB", limits.AnalysisQueries, limits.QueryLen>>10, limits.URLLen>>10)},
	{"timeout of a query", fmt.Sprintf("%d ms", limits.QueryTimeoutMS)},
	{"configuration of a plugin", fmt.Sprintf("%d KiB", limits.PluginConfigLen>>10)},
	{"items of a stats batch", limits.StatsItems},
	{"time of an item", fmt.Sprintf("at most %s ahead of the host's clock, at most %s behind it", short(limits.ReportAhead), short(limits.ReportBehind))},
	{"calls folded into one item", limits.CountPerItem},
	{"artifacts, releases of a service", fmt.Sprintf("%d, %d", limits.ArtifactsPerService, limits.ReleasesPerService)},
	{"configuration of a release", fmt.Sprintf("%d KiB of keys and values, keys of at most %d bytes", limits.ReleaseConfigLen>>10, limits.ReleaseConfigKeyLen)},
	{"deployments shown", fmt.Sprintf("%d of a service, the live one included", limits.DeploymentsKept)},
	{"ready_timeout_seconds", limits.MaxReadySeconds},
	{"ingress rules of a service", fmt.Sprintf("%d, prefixes of at most %d bytes", limits.IngressesPerService, limits.PathPrefixLen)},
	{"consumers of a shared service", limits.ConsumersPerService},
	{"items of a list", fmt.Sprintf("the newest %d, or %d MiB", limits.ListLen, limits.ListBytes>>20)},
}

var egressLimits = []limit{
	{"cluster, worker, checker, upstream, routing, zone, probe", fmt.Sprintf("1 to %d of `A-Z a-z 0-9 . _ -`, beginning with a letter or digit", limits.NameLen)},
	{"ids of instances, sessions, proxies", "as above, and `:`"},
	{"version of a probe", "as a name, and `+`"},
	{"text for people", fmt.Sprintf("UTF-8 without control characters; a reason at most %d KiB, a build %d bytes", limits.ReasonLen>>10, limits.NameLen)},
	{"version and epoch of a snapshot that a worker says it has", "0 to 2^53"},
	{"workers", limits.Workers},
	{"counters of a report, and proxies of a worker", fmt.Sprintf("%d, or less by the host's configuration: `max_runtime_counters` of a registration", limits.RuntimeCounters)},
	{"outcomes of a batch", fmt.Sprintf("1 to %d, or less: `max_outcome_batch`", limits.OutcomesPerBatch)},
	{"batches of a call", limits.OutcomeBatches},
	{"checkers", limits.Checkers},
	{"tasks that a checker holds at once", fmt.Sprintf("%d, or less by the host's configuration; more than that reads as that", limits.CheckWindow)},
	{"probes of a checker", limits.Probes},
	{"observations of a report", fmt.Sprintf("1 to %d", limits.Observations)},
	{"configuration", fmt.Sprintf("%d MiB; %d upstreams, %d routings", limits.PoolConfigLen>>20, poolconfig.MaxUpstreams, poolconfig.MaxRoutings)},
	{"upstreams of a routing", fmt.Sprintf("%d, weights 1 to %d, priorities 0 to %d", poolconfig.MaxRefs, poolconfig.MaxWeight, poolconfig.MaxPriority)},
	{"configuration of a plugin", fmt.Sprintf("%d KiB", limits.PluginConfigLen>>10)},
	{"list of proxies", fmt.Sprintf("%d MiB", limits.ProxyListLen>>20)},
	{"proxies of an upstream", fmt.Sprintf("%d, those that expired and are not forgotten yet included", limits.ProxiesPerUpstream)},
	{"ttl of a list", fmt.Sprintf("%s to %s", short(poolconfig.Least), short(poolconfig.Most))},
	{"lines that an import tells to be rejected", fmt.Sprintf("the first %d", limits.ListLen)},
	{"page of proxies", fmt.Sprintf("1 to %d; 0 is 100", limits.ProxyPage)},
	{"proxies of an extraction", fmt.Sprintf("1 to %d", limits.ExtractedAtOnce)},
	{"idempotency_key", fmt.Sprintf("1 to %d printable ASCII characters", limits.IdempotencyKeyLen)},
	{"min_remaining", fmt.Sprintf("0 to %s", short(poolconfig.Most))},
	{"labels of an extraction", fmt.Sprintf("%d, keys of at most %d bytes, values of %d", limits.Labels, limits.LabelKeyLen, limits.LabelValueLen)},
}

// limits writes the names and numbers that requests are held to.
func (w *writer) limits(all []limit) {
	w.line("## Names and limits")
	w.line("")
	w.line("| what | allowed |")
	w.line("|---|---|")
	for _, l := range all {
		w.line("| %s | %v |", l.what, l.allowed)
	}
	w.line("")
}
