package donaotel_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
	"github.com/dodona-project/dodona/sdk/dona/donaotel"
	"github.com/dodona-project/dodona/sdk/dona/donaotel/otlptest"
	"github.com/dodona-project/dodona/sdk/dona/internal/donatest"
)

func TestMain(m *testing.M) { donatest.Main(m) }

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
	r := otlptest.Start(t)
	t.Setenv("OTEL_SERVICE_NAME", "shop-frontend")
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

	spans, metrics := r.Spans(), r.Metrics()
	has(t, "resource", r.Resource(), map[string]string{"service.name": "shop-frontend"})
	if len(spans) != 4 {
		t.Fatalf("%d spans reached the receiver, want 4", len(spans))
	}
	first := spans[0]
	has(t, "a tester's span", otlptest.Attributes(first.Attributes), map[string]string{
		"dona.service": "checkout", "dona.variant": "v2", "dona.decision": "flag_targeting", "dona.flag": "b-testers", "dona.region": "eu",
		"dona.endpoint": "v2-a", "server.address": "127.0.0.1", "server.port": "20001", "dona.code": "503", "dona.stale": "false"})
	if got := otlptest.Attributes(first.Attributes)["dona.config.version"]; got == "" || got == "0" {
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
		has(t, "event", otlptest.Attributes(e.Attributes), want)
	}
	if text := fmt.Sprint(spans); strings.Contains(text, "user-1") {
		t.Errorf("a unit is in the clear: %s", text)
	}
	has(t, "an anonymous span", otlptest.Attributes(spans[1].Attributes), map[string]string{"dona.decision": "weight", "dona.code": "200"})
	has(t, "an unused span", otlptest.Attributes(spans[2].Attributes), map[string]string{"dona.unused": "true"})
	has(t, "a denied span", otlptest.Attributes(spans[3].Attributes), map[string]string{"dona.decision": "denied", "dona.variant": ""})

	decisions := map[string]int64{}
	for _, p := range metrics["dona.decisions"].GetSum().GetDataPoints() {
		decisions[otlptest.Attributes(p.Attributes)["dona.decision"]] += p.GetAsInt()
	}
	if decisions["flag_targeting"] != 1 || decisions["weight"] != 2 || decisions["denied"] != 1 {
		t.Errorf("dona.decisions: %v", decisions)
	}
	calls := map[string]uint64{}
	for _, p := range metrics["dona.call.duration"].GetHistogram().GetDataPoints() {
		calls[otlptest.Attributes(p.Attributes)["dona.success"]] += p.Count
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
