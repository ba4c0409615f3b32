// Package donaotel exports what a client decides as OpenTelemetry traces and
// metrics.
//
//	telemetry, err := donaotel.Start(ctx)
//	defer telemetry.Shutdown(ctx)
//	client, err := dona.Dial(ctx, target, telemetry.Option())
//
// Start sends OTLP over gRPC, set up by the standard variables: that is where
// OTEL_EXPORTER_OTLP_ENDPOINT says, with OTEL_EXPORTER_OTLP_HEADERS, _TIMEOUT,
// _CERTIFICATE and so on, under OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, and
// not at all with OTEL_SDK_DISABLED=true. A program that has OpenTelemetry set up
// gives its providers to NewObserver instead.
//
// Each pick is a span dona.call from the decision to its end, below the span of the
// context:
//
//	dona.service         the service
//	dona.variant         of the endpoint
//	dona.decision        flag_targeting, flag_rollout, weight, only_variant, denied
//	                     or unavailable
//	dona.flag            the deciding flag
//	dona.config.version  of the snapshot that decided
//	dona.region          of the endpoint
//	dona.endpoint        its id; server.address and server.port say where it is
//	dona.stale           true when no host confirms the snapshot
//	dona.code            what the call ended with
//	dona.unused          true when the pick was given back and nothing was sent
//
// Each flag that was evaluated is an event feature_flag.evaluation by the semantic
// conventions, with the unit as SHA-256 in feature_flag.context.id. Flags that are
// asked for without a pick are events of the context's span.
//
// The metrics are dona.decisions, a count by service, variant, decision, flag and
// region, and dona.call.duration in seconds by service, variant, region and
// dona.success. A pick that was not used is in no duration.
package donaotel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

// scope names this package as the source of spans and metrics.
const scope = "github.com/dodona-project/dodona/sdk/dona/donaotel"

// Telemetry exports until Shutdown.
type Telemetry struct {
	observer dona.Observer // nil = switched off
	shutdown []func(context.Context) error
}

// Start begins to export by the standard variables. It does not wait for a
// receiver: while there is none, spans are dropped as OpenTelemetry does it.
func Start(ctx context.Context) (*Telemetry, error) {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return &Telemetry{}, nil
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL"} {
		if v := os.Getenv(name); v != "" && v != "grpc" {
			return nil, fmt.Errorf("%s is %.40q: allowed is grpc; for another protocol make the providers yourself and use NewObserver", name, v)
		}
	}
	spans, err := otlptracegrpc.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("export traces: %w", err)
	}
	traces := sdktrace.NewTracerProvider(sdktrace.WithBatcher(spans))
	t := &Telemetry{shutdown: []func(context.Context) error{traces.Shutdown}}
	points, err := otlpmetricgrpc.New(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("export metrics: %w", err), t.Shutdown(ctx))
	}
	metrics := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(points)))
	t.shutdown = append(t.shutdown, metrics.Shutdown)
	if t.observer, err = NewObserver(traces, metrics); err != nil {
		return nil, errors.Join(err, t.Shutdown(ctx))
	}
	return t, nil
}

// Option makes a client export.
func (t *Telemetry) Option() dona.Option { return dona.WithObserver(t.observer) }

// Shutdown sends what was not sent yet, until ctx ends, and stops exporting.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	var errs []error
	for _, f := range t.shutdown {
		errs = append(errs, f(ctx))
	}
	return errors.Join(errs...)
}

type observer struct {
	tracer    trace.Tracer
	decisions metric.Int64Counter
	durations metric.Float64Histogram
}

// NewObserver makes an observer over providers that the caller owns.
func NewObserver(traces trace.TracerProvider, metrics metric.MeterProvider) (dona.Observer, error) {
	meter := metrics.Meter(scope)
	decisions, err := meter.Int64Counter("dona.decisions", metric.WithUnit("{decision}"),
		metric.WithDescription("Decisions, by what decided and what came out."))
	if err != nil {
		return nil, fmt.Errorf("metric dona.decisions: %w", err)
	}
	durations, err := meter.Float64Histogram("dona.call.duration", metric.WithUnit("s"),
		metric.WithDescription("How long calls took that were sent, as who called measured it."),
		metric.WithExplicitBucketBoundaries(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10))
	if err != nil {
		return nil, fmt.Errorf("metric dona.call.duration: %w", err)
	}
	return &observer{tracer: traces.Tracer(scope), decisions: decisions, durations: durations}, nil
}

func (ob *observer) Decided(ctx context.Context, o dona.Observation) func(dona.Outcome, bool) {
	d := &o.Decision
	place := []attribute.KeyValue{attribute.String("dona.service", o.Service)}
	if o.Err == nil {
		place = append(place, attribute.String("dona.variant", d.Variant))
		if o.Endpoint.Region != "" {
			place = append(place, attribute.String("dona.region", o.Endpoint.Region))
		}
	}
	decided := append(place[:len(place):len(place)], attribute.String("dona.decision", d.Kind.String()))
	if d.Flag != "" {
		decided = append(decided, attribute.String("dona.flag", d.Flag))
	}
	ob.decisions.Add(ctx, 1, metric.WithAttributes(decided...))

	_, span := ob.tracer.Start(ctx, "dona.call", trace.WithAttributes(decided...),
		trace.WithAttributes(attribute.Int64("dona.config.version", int64(d.ConfigVersion)), attribute.Bool("dona.stale", d.Stale)))
	for _, f := range o.Flags {
		evaluated(span, o.Service, d.ConfigVersion, o.UnitDigest, f)
	}
	if o.Err != nil {
		span.SetStatus(codes.Error, o.Err.Error())
		span.End()
		return nil
	}
	span.SetAttributes(attribute.String("dona.endpoint", o.Endpoint.ID))
	if host, port, err := net.SplitHostPort(o.Endpoint.Address); err == nil {
		span.SetAttributes(attribute.String("server.address", host))
		if n, err := strconv.Atoi(port); err == nil {
			span.SetAttributes(attribute.Int("server.port", n))
		}
	}
	return func(out dona.Outcome, used bool) {
		defer span.End()
		if !used {
			span.SetAttributes(attribute.Bool("dona.unused", true))
			return
		}
		if out.Code != "" {
			span.SetAttributes(attribute.String("dona.code", out.Code))
		}
		if !out.Success {
			span.SetStatus(codes.Error, out.Code)
		}
		if out.Latency > 0 {
			ob.durations.Record(ctx, out.Latency.Seconds(), metric.WithAttributes(append(place, attribute.Bool("dona.success", out.Success))...))
		}
	}
}

func (ob *observer) Evaluated(ctx context.Context, service string, version uint64, unit string, f dona.FlagGave) {
	evaluated(trace.SpanFromContext(ctx), service, version, unit, f)
}

// evaluated adds the event of one flag to a span.
func evaluated(span trace.Span, service string, version uint64, unit string, f dona.FlagGave) {
	if !span.IsRecording() {
		return
	}
	a := []attribute.KeyValue{
		attribute.String("feature_flag.key", f.Flag),
		attribute.String("feature_flag.provider.name", "dona"),
		attribute.String("feature_flag.set.id", service),
		attribute.String("feature_flag.version", strconv.FormatUint(version, 10)),
		attribute.String("feature_flag.result.reason", strings.ToLower(strings.TrimPrefix(f.Reason.String(), "REASON_"))),
	}
	if f.Variant != "" {
		a = append(a, attribute.String("feature_flag.result.variant", f.Variant))
	}
	if f.Reason == donav1.Reason_REASON_ERROR {
		a = append(a, attribute.String("error.type", "general"))
	}
	if unit != "" {
		a = append(a, attribute.String("feature_flag.context.id", unit))
	}
	span.AddEvent("feature_flag.evaluation", trace.WithAttributes(a...))
}
