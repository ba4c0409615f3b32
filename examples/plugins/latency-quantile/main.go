// Command latency-quantile is an example of an analysis plugin: it measures a quantile
// of the canary's latencies since the step began, from CSV in a file or at a URL. Each
// line is the time as unix seconds, the variant, and the latency in seconds.
package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"

	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
)

type config struct {
	Source     string  `json:"source" jsonschema:"description=path of a CSV file or its http URL"`
	Quantile   float64 `json:"quantile" jsonschema:"exclusiveMinimum=0,maximum=1"`
	MinSamples int     `json:"min_samples" jsonschema:"minimum=1,description=fewer are MISSING"`
}

type quantile struct{}

func main() { plugin.Serve(plugin.AnalysisOf("latency-quantile", "0.1.0", quantile{})) }

func (quantile) Configure(context.Context, config) error { return nil }

func (quantile) Evaluate(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	c, _ := plugin.Config[config](ctx)
	source, err := open(ctx, c.Source)
	if err != nil {
		return nil, err // nothing was measured: MISSING
	}
	defer source.Close()
	var samples []float64
	lines := csv.NewReader(io.LimitReader(source, 16<<20))
	lines.FieldsPerRecord = 3
	for {
		line, err := lines.Read()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("%s is not CSV of time, variant and latency: %w", c.Source, err)
		}
		at, err1 := strconv.ParseFloat(line[0], 64)
		latency, err2 := strconv.ParseFloat(line[2], 64)
		if err1 == nil && err2 == nil && line[1] == req.GetCanaryVariant() && int64(at) >= req.GetStepStartedAt().GetSeconds() {
			samples = append(samples, latency)
		}
	}
	if n := len(samples); n < c.MinSamples {
		return nil, fmt.Errorf("%d samples of %s are too few", n, req.GetCanaryVariant())
	}
	slices.Sort(samples)
	at := min(int(c.Quantile*float64(len(samples))), len(samples)-1)
	return &pluginv1.EvaluateReply{Value: samples[at], HasValue: true, Detail: fmt.Sprintf("p%g of %d samples", c.Quantile*100, len(samples))}, nil
}

func open(ctx context.Context, source string) (io.ReadCloser, error) {
	if !strings.HasPrefix(source, "http") {
		return os.Open(source)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, source, nil)
	if err != nil {
		return nil, err
	}
	reply, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	return reply.Body, nil // that of an error is no CSV
}
