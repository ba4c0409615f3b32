package api_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// printed is what the description of the API prints of its messages: names, numbers
// and types that clients in any language were written from.
const printed = `
ConfigSnapshot: service string 1, version uint64 2, endpoints repeated Endpoint 3, weights repeated VariantWeight 4, flags repeated FlagRule 5
FlagRule: flag string 1, service string 2, targeting repeated TargetingRule 3, rollout_percent uint32 4, rollout_variant string 5
StatsBatch: calls repeated CallOutcome 1, exposures repeated Exposure 2, audits repeated AuditEvent 3
StartRolloutRequest: service string 1, canary_variant string 2, stable_variant string 3, steps repeated uint32 4, step_seconds uint32 5, max_error_percent uint32 6, min_requests uint32 7, analysis repeated AnalysisQuery 8
AnalysisQuery: name string 1, prometheus_url string 2, query string 3, max_value double 4
StatusReply: config ConfigSnapshot 1, rollout RolloutStatus 2, stats repeated VariantStats 3
AttestationRequest: service string 1, from_unix int64 2, to_unix int64 3
AttestationReply: report_json bytes 1, signature bytes 2, signer_public_key_pem bytes 3
IssueSvidRequest: bootstrap_token string 1, service string 2, csr_pem bytes 3
IssueSvidResponse: spiffe_id string 1, cert_pem bytes 2, key_pem bytes 3, bundle_pem bytes 4, expires_unix int64 5`

// offered is what it prints of its calls.
const offered = `
ControlPlane.RegisterEndpoint(stream EndpointHeartbeat) RegisterAck
ControlPlane.WatchConfig(WatchConfigRequest) stream ConfigSnapshot
ControlPlane.ReportStats(StatsBatch) ReportAck
ControlPlane.SetFlag(SetFlagRequest) Empty
ControlPlane.StartRollout(StartRolloutRequest) Empty
ControlPlane.RegisterArtifact(RegisterArtifactRequest) Artifact
ControlPlane.CreateRelease(CreateReleaseRequest) Release
ControlPlane.StartDeployment(StartDeploymentRequest) Deployment
ControlPlane.SetIngress(SetIngressRequest) Empty
ControlPlane.SetSharedService(SetSharedServiceRequest) Empty
ControlPlane.GetStatus(GetStatusRequest) StatusReply
ControlPlane.GetAttestation(AttestationRequest) AttestationReply
Identity.IssueSvid(IssueSvidRequest) IssueSvidResponse`

// TestContract: the published contract still has what it began with.
func TestContract(t *testing.T) {
	have := map[string]bool{}
	for _, f := range []protoreflect.FileDescriptor{donav1.File_dona_v1_control_proto, donav1.File_dona_v1_identity_proto} {
		for i := range f.Messages().Len() {
			m := f.Messages().Get(i)
			for j := range m.Fields().Len() {
				d := m.Fields().Get(j)
				kind := d.Kind().String()
				if d.Message() != nil {
					kind = string(d.Message().Name())
				}
				if d.IsList() {
					kind = "repeated " + kind
				}
				have[fmt.Sprintf("%s: %s %s %d", m.Name(), d.Name(), kind, d.Number())] = true
			}
		}
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				d := s.Methods().Get(j)
				in, out := string(d.Input().Name()), string(d.Output().Name())
				if d.IsStreamingClient() {
					in = "stream " + in
				}
				if d.IsStreamingServer() {
					out = "stream " + out
				}
				have[fmt.Sprintf("%s.%s(%s) %s", s.Name(), d.Name(), in, out)] = true
			}
		}
	}
	for _, line := range strings.Split(strings.TrimSpace(printed), "\n") {
		message, fields, _ := strings.Cut(line, ": ")
		for _, field := range strings.Split(fields, ", ") {
			if !have[message+": "+field] {
				t.Errorf("%s has no field %q any more", message, field)
			}
		}
	}
	for _, call := range strings.Split(strings.TrimSpace(offered), "\n") {
		if !have[call] {
			t.Errorf("there is no %q any more", call)
		}
	}
}
