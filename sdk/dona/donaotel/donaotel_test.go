package donaotel_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	metricsv1 "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracesv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	metricv1 "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
	"github.com/dodona-project/dodona/sdk/dona/donaotel"
	"github.com/dodona-project/dodona/sdk/dona/internal/donatest"
)

func TestMain(m *testing.M) { donatest.Main(m) }

// receiver takes OTLP over gRPC and keeps it.
type receiver struct {
	tracesv1.UnimplementedTraceServiceServer

	mu       sync.Mutex
	spans    []*tracev1.Span
	metrics  map[string]*metricv1.Metric
	resource map[string]string
}

type metricsReceiver struct {
	metricsv1.UnimplementedMetricsServiceServer
	*receiver
}

func (r *receiver) Export(_ context.Context, req *tracesv1.ExportTraceServiceRequest) (*tracesv1.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rs := range req.ResourceSpans {
		r.resource = attributes(rs.Resource.Attributes)
		for _, ss := range rs.ScopeSpans {
			r.spans = append(r.spans, ss.Spans...)
		}
	}
	return &tracesv1.ExportTraceServiceResponse{}, nil
}

func (r metricsReceiver) Export(_ context.Context, req *metricsv1.ExportMetricsServiceRequest) (*metricsv1.ExportMetricsServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rm := range req.ResourceMetrics {
		for _, sm := range rm.ScopeMetrics {
			for _, m := range sm.Metrics {
				r.metrics[m.Name] = m
			}
		}
	}
	return &metricsv1.ExportMetricsServiceResponse{}, nil
}

func attributes(all []*commonv1.KeyValue) map[string]string {
	out := map[string]string{}
	for _, a := range all {
		switch v := a.Value.Value.(type) {
		case *commonv1.AnyValue_StringValue:
			out[a.Key] = v.StringValue
		case *commonv1.AnyValue_IntValue:
			out[a.Key] = fmt.Sprint(v.IntValue)
		case *commonv1.AnyValue_BoolValue:
			out[a.Key] = fmt.Sprint(v.BoolValue)
		}
	}
	return out
}

// receive starts a receiver and makes the standard variables name it.
func receive(t *testing.T) *receiver {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &receiver{metrics: map[string]*metricv1.Metric{}}
	server := grpc.NewServer()
	tracesv1.RegisterTraceServiceServer(server, r)
	metricsv1.RegisterMetricsServiceServer(server, metricsReceiver{receiver: r})
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() { server.Stop(); <-served })
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())
	t.Setenv("OTEL_SERVICE_NAME", "shop-frontend")
	return r
}

// has checks that want is in got.
func has(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s: %s is %q, want %q", what, k, got[k], v)
		}
	}
}

func TestExports(t *testing.T) {
	r := receive(t)
	h := donatest.Start(t)
	telemetry, err := donaotel.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client := h.Dial(t, telemetry.Option())
	for i, v := range []string{"v1", "v2"} {
		donatest.Register(t, client, dona.OwnEndpoint{Service: "checkout", ID: v + "-a", Address: fmt.Sprint("127.0.0.1:", 20_000+i), Variant: v, Region: "eu"})
	}
	for _, f := range []*donav1.FlagRule{
		{Flag: "a-nobody", Service: "checkout", RolloutVariant: "v2"},
		{Flag: "b-testers", Service: "checkout", Targeting: []*donav1.TargetingRule{{Attribute: "tester", Values: []string{"yes"}, Variant: "v2"}}},
	} {
		if _, err := h.Admin.SetFlag(t.Context(), &donav1.SetFlagRequest{Rule: f}); err != nil {
			t.Fatal(err)
		}
	}
	s := client.Service("checkout")
	var version uint64
	donatest.Until(t, "the client knows all", func() bool {
		version = s.Status().Version
		e, err := s.Endpoints()
		now := h.Status(t, "checkout").GetConfig().GetVersion()
		return err == nil && len(e) == 2 && now == version && s.Status().Version == version
	})

	pick, err := s.Pick(t.Context(), dona.Request{Unit: "user-1", Attributes: []dona.Attribute{dona.String("tester", "yes")}})
	if err != nil {
		t.Fatal(err)
	}
	pick.Done(dona.Outcome{Success: false, Latency: 20 * time.Millisecond, Code: "503"})
	pick, err = s.Pick(t.Context(), dona.Request{})
	if err != nil {
		t.Fatal(err)
	}
	pick.Done(dona.Outcome{Success: true, Latency: time.Millisecond, Code: "200"})
	pick, err = s.Pick(t.Context(), dona.Request{})
	if err != nil {
		t.Fatal(err)
	}
	pick.Cancel()
	var denied *dona.DeniedError
	if _, err := s.Pick(t.Context(), dona.Request{Regions: []string{"mars"}}); !errors.As(err, &denied) {
		t.Fatal(err)
	}
	if err := telemetry.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	has(t, "resource", r.resource, map[string]string{"service.name": "shop-frontend"})
	if len(r.spans) != 4 {
		t.Fatalf("%d spans reached the receiver, want 4", len(r.spans))
	}
	first := r.spans[0]
	has(t, "a tester's span", attributes(first.Attributes), map[string]string{
		"dona.service": "checkout", "dona.variant": "v2", "dona.decision": "flag_targeting", "dona.flag": "b-testers", "dona.region": "eu",
		"dona.endpoint": "v2-a", "server.address": "127.0.0.1", "server.port": "20001", "dona.code": "503", "dona.stale": "false"})
	if got := attributes(first.Attributes)["dona.config.version"]; got == "" || got == "0" {
		t.Errorf("dona.config.version is %q", got)
	}
	if first.Name != "dona.call" || first.Status.GetCode() != tracev1.Status_STATUS_CODE_ERROR || len(first.Events) != 2 {
		t.Fatalf("a tester's span: %v", first)
	}
	sum := sha256.Sum256([]byte("user-1"))
	for i, want := range []map[string]string{
		{"feature_flag.key": "a-nobody", "feature_flag.result.reason": "default"},
		{"feature_flag.key": "b-testers", "feature_flag.result.reason": "targeting_match", "feature_flag.result.variant": "v2"},
	} {
		e := first.Events[i]
		if e.Name != "feature_flag.evaluation" {
			t.Errorf("event %q", e.Name)
		}
		want["feature_flag.context.id"], want["feature_flag.provider.name"], want["feature_flag.set.id"] = hex.EncodeToString(sum[:]), "dona", "checkout"
		has(t, "event", attributes(e.Attributes), want)
	}
	if text := fmt.Sprint(r.spans); strings.Contains(text, "user-1") {
		t.Errorf("a unit is in the clear: %s", text)
	}
	has(t, "an anonymous span", attributes(r.spans[1].Attributes), map[string]string{"dona.decision": "weight", "dona.code": "200"})
	has(t, "an unused span", attributes(r.spans[2].Attributes), map[string]string{"dona.unused": "true"})
	has(t, "a denied span", attributes(r.spans[3].Attributes), map[string]string{"dona.decision": "denied", "dona.variant": ""})

	decisions := map[string]int64{}
	for _, p := range r.metrics["dona.decisions"].GetSum().GetDataPoints() {
		decisions[attributes(p.Attributes)["dona.decision"]] += p.GetAsInt()
	}
	if decisions["flag_targeting"] != 1 || decisions["weight"] != 2 || decisions["denied"] != 1 {
		t.Errorf("dona.decisions: %v", decisions)
	}
	calls := map[string]uint64{}
	for _, p := range r.metrics["dona.call.duration"].GetHistogram().GetDataPoints() {
		calls[attributes(p.Attributes)["dona.success"]] += p.Count
	}
	if calls["true"] != 1 || calls["false"] != 1 {
		t.Errorf("dona.call.duration: %v", calls)
	}
}

// A span lies below that of the context, and a flag asked for alone is an event of
// it.
func TestNestsInTheCallersTrace(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	traces := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	o, err := donaotel.NewObserver(traces, noop.NewMeterProvider())
	if err != nil {
		t.Fatal(err)
	}
	h := donatest.Start(t)
	client := h.Dial(t, dona.WithObserver(o))
	donatest.Register(t, client, dona.OwnEndpoint{Service: "checkout", ID: "a", Address: "127.0.0.1:20000", Variant: "v1"})
	if _, err := h.Admin.SetFlag(t.Context(), &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Flag: "f", Service: "checkout", RolloutPercent: 100, RolloutVariant: "v1"}}); err != nil {
		t.Fatal(err)
	}
	s := client.Service("checkout")
	donatest.Until(t, "the client knows the flag", func() bool {
		e, err := s.Flag(context.Background(), "f", dona.Request{})
		return err == nil && e.Variant == "v1"
	})
	ctx, parent := traces.Tracer("test").Start(t.Context(), "request")
	pick, err := s.Pick(ctx, dona.Request{})
	if err != nil {
		t.Fatal(err)
	}
	pick.Done(dona.Outcome{Success: true})
	if _, err := s.Flag(ctx, "f", dona.Request{Unit: "user-1"}); err != nil {
		t.Fatal(err)
	}
	parent.End()
	ended := spans.Ended()
	if len(ended) != 2 || ended[0].Parent().SpanID() != parent.SpanContext().SpanID() {
		t.Fatalf("%d spans ended: want the call below the request", len(ended))
	}
	if e := ended[1].Events(); len(e) != 1 || e[0].Name != "feature_flag.evaluation" {
		t.Errorf("the request's events: %v", e)
	}
}

func TestStart(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
	if _, err := donaotel.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "OTEL_EXPORTER_OTLP_PROTOCOL") {
		t.Errorf("another protocol: %v", err)
	}
	t.Setenv("OTEL_SDK_DISABLED", "true")
	telemetry, err := donaotel.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client, err := dona.Dial(t.Context(), "127.0.0.1:1", dona.WithoutCache(), telemetry.Option())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := telemetry.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}
