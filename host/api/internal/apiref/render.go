package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/dodona-project/dodona/host/api"
	"github.com/dodona-project/dodona/host/limits"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// files are the contract of the page, in its order.
var files = []protoreflect.FileDescriptor{
	donav1.File_dona_v1_control_proto, donav1.File_dona_v1_plan_proto, donav1.File_dona_v1_host_proto,
}

// writer writes the page.
type writer struct {
	strings.Builder
	comments comments
}

func (w *writer) line(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }

// reference is the page, from the .proto files below the root of the tree.
func reference(root string) ([]byte, error) {
	w := &writer{comments: comments{}}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(root, "proto", filepath.FromSlash(f.Path())))
		if err != nil {
			return nil, err
		}
		all, err := readComments(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path(), err)
		}
		for name, comment := range all {
			w.comments[name] = comment
		}
	}
	w.line("<!-- Written by make docs from proto/dona/v1, host/api and host/limits: change those. -->")
	w.line("%s", strings.TrimSpace(introduction))
	w.line("")
	w.limits()
	for _, f := range files {
		for i := range f.Services().Len() {
			if err := w.service(f.Services().Get(i)); err != nil {
				return nil, err
			}
		}
	}
	w.line("## Messages")
	for _, f := range files {
		w.line("")
		w.line("From `proto/%s`.", f.Path())
		if err := w.enums(f.Enums()); err != nil {
			return nil, err
		}
		for i := range f.Messages().Len() {
			if err := w.message(f.Messages().Get(i)); err != nil {
				return nil, err
			}
		}
	}
	return []byte(w.String()), nil
}

func (w *writer) about(d protoreflect.Descriptor) (string, error) {
	text, known := w.comments[string(d.FullName())]
	if !known {
		return "", fmt.Errorf("%s is in the compiled contract and not in its .proto file: run make proto", d.FullName())
	}
	return text, nil
}

func (w *writer) service(s protoreflect.ServiceDescriptor) error {
	text, err := w.about(s)
	if err != nil {
		return err
	}
	w.line("## %s", s.Name())
	w.line("")
	w.line("%s", text)
	w.line("")
	w.line("| call | who | has to be its own | calls a second, burst | message, KiB | deadline |")
	w.line("|---|---|---|---|---|---|")
	for i := range s.Methods().Len() {
		m := s.Methods().Get(i)
		rule, ok := api.Policy[path(m)]
		if !ok {
			return fmt.Errorf("%s has no row in the table of host/api", m.FullName())
		}
		deadline := "its client's"
		if !m.IsStreamingClient() && !m.IsStreamingServer() {
			deadline = "at most " + short(rule.Deadline())
		}
		own := ""
		if rule.Object != "" {
			own = "`" + rule.Object + "`"
		}
		w.line("| [%s](#%s) | %s | %s | %g, %d | %d | %s |", m.Name(), strings.ToLower(string(m.Name())), who(rule.Roles), own, rule.Rate, rule.Burst, rule.MaxBytes>>10, deadline)
	}
	w.line("")
	for i := range s.Methods().Len() {
		m := s.Methods().Get(i)
		text, err := w.about(m)
		if err != nil {
			return err
		}
		w.line("### %s", m.Name())
		w.line("")
		w.line("`%s(%s) → %s`", m.Name(), streamed(m.IsStreamingClient(), m.Input()), streamed(m.IsStreamingServer(), m.Output()))
		w.line("")
		w.line("%s", emphasised(text))
		w.line("")
		if m.FullName() == "dona.v1.ControlPlane.ControlRollout" {
			w.actions()
		}
	}
	return nil
}

func path(m protoreflect.MethodDescriptor) string {
	return "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
}

func short(d time.Duration) string {
	if d%time.Minute == 0 {
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return fmt.Sprintf("%g s", d.Seconds())
}

func who(roles []api.Role) string {
	names := make([]string, len(roles))
	for i, r := range roles {
		names[i] = string(r)
	}
	return strings.Join(names, ", ")
}

func streamed(stream bool, m protoreflect.MessageDescriptor) string {
	if stream {
		return "stream " + string(m.Name())
	}
	return string(m.Name())
}

// emphasised makes the labels of a comment bold, and sets its lists apart.
func emphasised(text string) string {
	for _, label := range labels {
		text = strings.ReplaceAll(text, "\n"+label+":\n", "\n**"+label+"**\n\n")
		text = strings.ReplaceAll(text, "\n"+label+": ", "\n**"+label+"**: ")
	}
	return text
}

// labels are what every call's comment has to say.
var labels = []string{"Refuses", "Durability", "Audit"}

func (w *writer) message(m protoreflect.MessageDescriptor) error {
	if m.IsMapEntry() {
		return nil
	}
	text, err := w.about(m)
	if err != nil {
		return err
	}
	w.head(m, text)
	if m.Fields().Len() == 0 {
		w.line("")
		w.line("No fields.")
	} else {
		w.line("")
		w.line("| field | | type | |")
		w.line("|---|---|---|---|")
	}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		text, err := w.about(f)
		if err != nil {
			return err
		}
		w.line("| `%s` | %d | %s | %s |", f.Name(), f.Number(), kind(f), cell(text))
	}
	if err := w.enums(m.Enums()); err != nil {
		return err
	}
	for i := range m.Messages().Len() {
		if err := w.message(m.Messages().Get(i)); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) enums(all protoreflect.EnumDescriptors) error {
	for i := range all.Len() {
		e := all.Get(i)
		text, err := w.about(e)
		if err != nil {
			return err
		}
		w.head(e, text)
		w.line("")
		w.line("| value | | |")
		w.line("|---|---|---|")
		for j := range e.Values().Len() {
			v := e.Values().Get(j)
			// Values are siblings of their enum; the file has them inside.
			text, known := w.comments[string(e.FullName())+"."+string(v.Name())]
			if !known {
				return fmt.Errorf("%s is not in its .proto file: run make proto", v.FullName())
			}
			w.line("| `%s` | %d | %s |", v.Name(), v.Number(), cell(text))
		}
	}
	return nil
}

func (w *writer) head(d protoreflect.Descriptor, text string) {
	w.line("")
	w.line("### %s", strings.TrimPrefix(string(d.FullName()), "dona.v1."))
	if text != "" {
		w.line("")
		w.line("%s", text)
	}
}

// cell is a comment as it fits into a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}

func kind(f protoreflect.FieldDescriptor) string {
	if f.IsMap() {
		return fmt.Sprintf("map of %s to %s", f.MapKey().Kind(), f.MapValue().Kind())
	}
	name := f.Kind().String()
	switch {
	case f.Message() != nil:
		name = string(f.Message().FullName())
	case f.Enum() != nil:
		name = string(f.Enum().FullName())
	}
	name = strings.TrimPrefix(name, "dona.v1.")
	if f.IsList() {
		return "repeated " + name
	}
	return name
}

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

// limits writes the names and numbers that requests are held to.
func (w *writer) limits() {
	w.line("## Names and limits")
	w.line("")
	w.line("| what | allowed |")
	w.line("|---|---|")
	for _, l := range []struct {
		what    string
		allowed any
	}{
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
	} {
		w.line("| %s | %v |", l.what, l.allowed)
	}
	w.line("")
}
