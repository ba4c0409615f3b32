// Package otlptest is a real OTLP receiver for tests.
package otlptest

import (
	"context"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"

	metricsv1 "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracesv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	metricv1 "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// Receiver takes OTLP over gRPC on loopback and keeps it. Safe for concurrent use.
type Receiver struct {
	mu       sync.Mutex
	spans    []*tracev1.Span
	metrics  map[string]*metricv1.Metric // by name, as they came last
	resource map[string]string
}

// Start starts a receiver that is gone when the test ends, and makes the standard
// variables name it, so the test may not run in parallel with others.
func Start(t *testing.T) *Receiver {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &Receiver{metrics: map[string]*metricv1.Metric{}}
	server := grpc.NewServer()
	tracesv1.RegisterTraceServiceServer(server, traces{r: r})
	metricsv1.RegisterMetricsServiceServer(server, metrics{r: r})
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() { server.Stop(); <-served })
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())
	return r
}

// Spans returns the spans that came, in their order.
func (r *Receiver) Spans() []*tracev1.Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.spans)
}

// Metrics returns what came last of each metric, by name.
func (r *Receiver) Metrics() map[string]*metricv1.Metric {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[string]*metricv1.Metric, len(r.metrics))
	for name, m := range r.metrics {
		all[name] = m
	}
	return all
}

// Resource returns the attributes of what sent last.
func (r *Receiver) Resource() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.resource
}

// Attributes returns texts, numbers and truth values as text; others are left out.
func Attributes(all []*commonv1.KeyValue) map[string]string {
	out := map[string]string{}
	for _, a := range all {
		switch v := a.GetValue().GetValue().(type) {
		case *commonv1.AnyValue_StringValue:
			out[a.Key] = v.StringValue
		case *commonv1.AnyValue_IntValue:
			out[a.Key] = strconv.FormatInt(v.IntValue, 10)
		case *commonv1.AnyValue_BoolValue:
			out[a.Key] = strconv.FormatBool(v.BoolValue)
		}
	}
	return out
}

type traces struct {
	tracesv1.UnimplementedTraceServiceServer
	r *Receiver
}

func (s traces) Export(_ context.Context, req *tracesv1.ExportTraceServiceRequest) (*tracesv1.ExportTraceServiceResponse, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	for _, rs := range req.ResourceSpans {
		s.r.resource = Attributes(rs.Resource.GetAttributes())
		for _, ss := range rs.ScopeSpans {
			s.r.spans = append(s.r.spans, ss.Spans...)
		}
	}
	return &tracesv1.ExportTraceServiceResponse{}, nil
}

type metrics struct {
	metricsv1.UnimplementedMetricsServiceServer
	r *Receiver
}

func (s metrics) Export(_ context.Context, req *metricsv1.ExportMetricsServiceRequest) (*metricsv1.ExportMetricsServiceResponse, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	for _, rm := range req.ResourceMetrics {
		s.r.resource = Attributes(rm.Resource.GetAttributes())
		for _, sm := range rm.ScopeMetrics {
			for _, m := range sm.Metrics {
				s.r.metrics[m.Name] = m
			}
		}
	}
	return &metricsv1.ExportMetricsServiceResponse{}, nil
}
