package host_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/dodona-project/dodona/host"
	"github.com/dodona-project/dodona/host/config"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/donaotel/otlptest"
)

// spans returns the spans that came, by name.
func spans(r *otlptest.Receiver) map[string]*tracev1.Span {
	all := map[string]*tracev1.Span{}
	for _, s := range r.Spans() {
		all[s.Name] = s
	}
	return all
}

// TestTelemetry: what the standard variables ask for comes to a real receiver, and
// nothing else does.
func TestTelemetry(t *testing.T) {
	const parent = "4bf92f3577b34da6a3ce929d0e0e4736"
	use := func(t *testing.T, r *running) {
		conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
		check(t, err)
		defer func() { _ = conn.Close() }()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		check(t, err)
		client := donav1.NewControlPlaneClient(conn)
		ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", "00-"+parent+"-00f067aa0ba902b7-01")
		_, err = client.SetFlag(ctx, &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Service: "web", Flag: "f"}})
		check(t, err)
		if _, err := client.GetStatus(ctx, &donav1.GetStatusRequest{Service: "none"}); err == nil {
			t.Error("there is a status of no service")
		}
		check(t, r.stop())
	}
	t.Run("all", func(t *testing.T) {
		c := otlptest.Start(t)
		t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
		use(t, start(t, nil)) // a stop sends what is left
		spans, metrics := spans(c), c.Metrics()
		set, refused := spans["dona.v1.ControlPlane/SetFlag"], spans["dona.v1.ControlPlane/GetStatus"]
		if set == nil || refused == nil || len(spans) != 2 {
			t.Fatalf("the spans are %v", spans)
		}
		if fmt.Sprintf("%x", set.TraceId) != parent {
			t.Errorf("the span is in trace %x, the caller's is %s", set.TraceId, parent)
		}
		if a := otlptest.Attributes(refused.Attributes); a["rpc.response.status_code"] != "NOT_FOUND" {
			t.Errorf("the refused call has %v", a)
		}
		// What /metrics shows, and nothing twice.
		calls := metrics["dona_rpc_total"]
		if calls == nil || metrics["dona_rpc_seconds"].GetHistogram() == nil || metrics["go_goroutines"] == nil {
			t.Fatalf("the metrics are %v", metrics)
		}
		seen := false
		for _, p := range calls.GetSum().GetDataPoints() {
			a := otlptest.Attributes(p.Attributes)
			seen = seen || strings.HasSuffix(a["method"], "SetFlag") && a["code"] == "OK" && p.GetAsDouble() == 1
		}
		if !seen || !calls.GetSum().GetIsMonotonic() {
			t.Errorf("dona_rpc_total is %v", calls)
		}
		for name := range metrics {
			if strings.HasPrefix(name, "rpc.") {
				t.Errorf("calls are measured twice, as %s too", name)
			}
		}
		if from := c.Resource(); from["service.name"] != "dona-host" || from["service.version"] != host.Version || len(from["service.instance.id"]) != 16 || from["deployment.environment.name"] != "test" {
			t.Errorf("the resource is %v", from)
		}
	})
	for name, env := range map[string][2]string{
		"no traces":  {"OTEL_TRACES_EXPORTER", "none"},
		"no metrics": {"OTEL_METRICS_EXPORTER", "none"},
		"disabled":   {"OTEL_SDK_DISABLED", "true"},
	} {
		t.Run(name, func(t *testing.T) {
			c := otlptest.Start(t)
			t.Setenv(env[0], env[1])
			use(t, start(t, nil))
			spans, metrics := spans(c), c.Metrics()
			if (len(spans) > 0) != (name == "no metrics") || (len(metrics) > 0) != (name == "no traces") {
				t.Errorf("came %v and %v", spans, metrics)
			}
		})
	}
	t.Run("a receiver that never answers", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		check(t, err)
		defer func() { _ = l.Close() }()
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())
		t.Setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
		r := start(t, nil)
		use(t, r)
		if !strings.Contains(r.log.String(), "was not exported") {
			t.Error("the log does not say that nothing was exported")
		}
	})
	t.Run("bad variables", func(t *testing.T) {
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
		t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
		t.Setenv("OTEL_METRICS_EXPORTER", "prometheus")
		c, err := config.Load("", nil, map[string]string{"dev": "true", "data-dir": t.TempDir() + "/data"})
		check(t, err)
		_, err = host.New(c, hclog.NewNullLogger())
		var wrong *config.Error
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), "OTEL_EXPORTER_OTLP_PROTOCOL") || !strings.Contains(err.Error(), "OTEL_METRICS_EXPORTER") {
			t.Errorf("bad variables: %v", err)
		}
	})
}
