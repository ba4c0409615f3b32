package render

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// Artifacts is the table of a service's builds.
func (s Style) Artifacts(artifacts []*donav1.Artifact) []string {
	t := &table{}
	t.add("ARTIFACT", "DIGEST", "REGISTERED", "URI", "LABELS")
	for _, a := range artifacts {
		t.add(Clean(a.GetId()), Clean(short(a.GetDigest())), when(a.GetCreatedUnix()), dash(a.GetUri()), pairs(a.GetLabels()))
	}
	return t.lines(s)
}

// Releases is the table of a service's releases. It names what their
// configuration sets, and not to what.
func (s Style) Releases(releases []*donav1.Release) []string {
	t := &table{}
	t.add("RELEASE", "ARTIFACT", "VARIANT", "CREATED", "CONFIG")
	for _, r := range releases {
		t.add(Clean(r.GetId()), Clean(r.GetArtifactId()), Clean(r.GetVariant()), when(r.GetCreatedUnix()), list(sorted(r.GetConfig()), "-"))
	}
	return t.lines(s)
}

// short is the beginning of a digest, enough to tell it from others.
func short(digest string) string {
	const enough = len("sha256:") + 12
	if len(digest) <= enough {
		return digest
	}
	return digest[:enough] + "..."
}

func when(unix int64) string {
	return time.Unix(unix, 0).UTC().Format("2006-01-02 15:04:05Z")
}

func pairs(labels map[string]string) string {
	var out []string
	for _, key := range sorted(labels) {
		out = append(out, key+"="+labels[key])
	}
	return list(out, "-")
}

// DeploymentState is the state's name as the documentation writes it.
func DeploymentState(state donav1.Deployment_State) string {
	return strings.TrimPrefix(state.String(), "STATE_")
}

func deploymentColor(state donav1.Deployment_State) string {
	switch state {
	case donav1.Deployment_STATE_SUCCEEDED:
		return green
	case donav1.Deployment_STATE_FAILED, donav1.Deployment_STATE_ROLLED_BACK:
		return red
	}
	return cyan
}

func strategy(d *donav1.Deployment) string {
	return strings.TrimPrefix(d.GetStrategy().String(), "STRATEGY_")
}

// Deployments is the table of a service's deployments.
func (s Style) Deployments(deployments []*donav1.Deployment) []string {
	t := &table{paint: func(row, col int) string {
		if col == 1 {
			return deploymentColor(deployments[row-1].GetState())
		}
		return ""
	}}
	t.add("RELEASE", "STATE", "STRATEGY", "ENVIRONMENT", "REGIONS", "UPDATED", "ID", "REASON")
	for _, d := range deployments {
		t.add(Clean(d.GetReleaseId()), DeploymentState(d.GetState()), strategy(d), dash(d.GetEnvironment()), list(d.GetRegions(), "-"),
			when(d.GetUpdatedUnix()), Clean(d.GetId()), Clean(d.GetReason()))
	}
	return t.lines(s)
}

// DeploymentLine is one line about a deployment.
func DeploymentLine(service string, d *donav1.Deployment) string {
	line := fmt.Sprintf("%s %s of %s %s", Clean(service), strategy(d), Clean(d.GetReleaseId()), DeploymentState(d.GetState()))
	if d.GetReason() != "" {
		line += "; " + Clean(d.GetReason())
	}
	return line
}

// DeploymentMark is equal for two states of a deployment between which nothing
// happened that deserves a line: it waited, for the same.
func DeploymentMark(d *donav1.Deployment) string {
	reason, _, _ := strings.Cut(d.GetReason(), " (")
	return strings.Join([]string{d.GetId(), strconv.Itoa(int(d.GetState())), reason}, "|")
}

// Ingresses is the table of ingress rules.
func (s Style) Ingresses(rules []*donav1.Ingress) []string {
	t := &table{}
	t.add("HOST", "PATH", "SERVICE", "REGIONS")
	for _, r := range rules {
		t.add(Clean(r.GetHost()), Clean(r.GetPathPrefix()), Clean(r.GetService()), list(r.GetAllowedRegions(), "any"))
	}
	return t.lines(s)
}

// Shared says in one line who may watch a service.
func (s Style) Shared(reply *donav1.StatusReply) []string {
	shared := reply.GetShared()
	if shared == nil {
		return []string{"shared     with every workload"}
	}
	who := "with " + list(shared.GetConsumers(), "nobody")
	if slices.Contains(shared.GetConsumers(), "*") {
		who = "with every workload"
	}
	if len(shared.GetAllowedRegions()) > 0 {
		who += ", in " + list(shared.GetAllowedRegions(), "")
	}
	return []string{"shared     " + who}
}
