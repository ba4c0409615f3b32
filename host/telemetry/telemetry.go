// Package telemetry exports a host's calls and metrics by OTLP. The host's wiring
// starts it; what it exports is what the API serves and what /metrics shows.
//
// The standard variables say whether and where to. There is no export unless one of
// OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT and
// OTEL_EXPORTER_OTLP_METRICS_ENDPOINT is set, and none with OTEL_SDK_DISABLED=true;
// OTEL_TRACES_EXPORTER or OTEL_METRICS_EXPORTER none leaves one of the two out.
//
// It promises never to hold the host up: what cannot be sent is dropped and logged,
// and what waits to be sent is bounded.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc/filters"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc/stats"
)

// Settings say what is exported.
type Settings struct{ Traces, Metrics bool }

// Read takes the settings from the standard variables, as get gives them. Its error
// names the variable and what it may be.
func Read(get func(name string) string) (Settings, error) {
	if strings.EqualFold(get("OTEL_SDK_DISABLED"), "true") {
		return Settings{}, nil
	}
	var errs []error
	signal := func(name string) bool {
		exporter := "OTEL_" + name + "_EXPORTER"
		switch v := get(exporter); v {
		case "", "otlp":
		case "none":
			return false
		default:
			errs = append(errs, fmt.Errorf("%s is %.40q: allowed are otlp and none", exporter, v))
			return false
		}
		own := "OTEL_EXPORTER_OTLP_" + name + "_"
		if get("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && get(own+"ENDPOINT") == "" {
			return false
		}
		protocol := own + "PROTOCOL"
		if get(protocol) == "" {
			protocol = "OTEL_EXPORTER_OTLP_PROTOCOL"
		}
		if v := get(protocol); v != "" && v != "grpc" {
			errs = append(errs, fmt.Errorf("%s is %.40q: allowed is grpc", protocol, v))
		}
		return true
	}
	s := Settings{Traces: signal("TRACES"), Metrics: signal("METRICS")}
	if err := errors.Join(errs...); err != nil {
		return Settings{}, err
	}
	return s, nil
}

// Host says who exports.
type Host struct{ ID, Version string }

// Exporter sends until Shutdown. The zero Exporter sends nothing.
type Exporter struct {
	// Calls makes a span of each call of a server; nil when there are no traces.
	Calls stats.Handler

	shutdown []func(context.Context) error
}

// Start begins to export calls, and what metrics holds every OTEL_METRIC_EXPORT_INTERVAL
// (a minute). It does not wait for a receiver. What OpenTelemetry has to say later is
// logged, which is a setting of the whole process.
func Start(ctx context.Context, s Settings, host Host, metrics prometheus.Gatherer, log hclog.Logger) (*Exporter, error) {
	e := &Exporter{}
	if !s.Traces && !s.Metrics {
		return e, nil
	}
	otel.SetErrorHandler(&said{log: log})
	who, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", "dona-host"), attribute.String("service.version", host.Version),
		attribute.String("service.instance.id", host.ID),
	), resource.WithFromEnv()) // what the environment says wins
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	if s.Traces {
		spans, err := otlptracegrpc.New(ctx)
		if err != nil {
			return nil, fmt.Errorf("export traces: %w", err)
		}
		traces := sdktrace.NewTracerProvider(sdktrace.WithBatcher(spans), sdktrace.WithResource(who))
		e.shutdown = append(e.shutdown, func(ctx context.Context) error {
			err := traces.Shutdown(ctx)
			if ctx.Err() != nil { // it goes on sending: cut it off
				_ = spans.Shutdown(ctx)
			}
			return err
		})
		e.Calls = otelgrpc.NewServerHandler(
			otelgrpc.WithTracerProvider(traces), otelgrpc.WithPropagators(propagation.TraceContext{}),
			otelgrpc.WithMeterProvider(noop.NewMeterProvider()), // calls are among the host's own metrics
			otelgrpc.WithFilter(filters.Not(filters.HealthCheck())),
		)
	}
	if s.Metrics {
		points, err := otlpmetricgrpc.New(ctx)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("export metrics: %w", err), e.Shutdown(ctx))
		}
		reader := sdkmetric.NewPeriodicReader(points, sdkmetric.WithProducer(bridge.NewMetricProducer(bridge.WithGatherer(metrics))))
		e.shutdown = append(e.shutdown, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithResource(who)).Shutdown)
	}
	return e, nil
}

// Shutdown sends what was not sent yet, all at once and until ctx ends, and stops.
func (e *Exporter) Shutdown(ctx context.Context) error {
	errs := make([]error, len(e.shutdown))
	var all sync.WaitGroup
	for i, f := range e.shutdown {
		all.Go(func() { errs[i] = f(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// said logs what OpenTelemetry has to say, at most once in saidPause: a receiver that
// is away fails every batch.
type said struct {
	log hclog.Logger

	mu   sync.Mutex
	at   time.Time
	more int // since at
}

const saidPause = 10 * time.Second

// Handle implements otel.ErrorHandler.
func (s *said) Handle(err error) {
	s.mu.Lock()
	now := time.Now()
	if !s.at.IsZero() && now.Sub(s.at) < saidPause {
		s.more++
		s.mu.Unlock()
		return
	}
	more := s.more
	s.at, s.more = now, 0
	s.mu.Unlock()
	s.log.Warn("telemetry was not exported", "error", err, "more_like_it", more)
}
