package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/dodona-project/dodona/host/limits"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// maxInput is what the program reads of a file or of stdin.
const maxInput = 1 << 20

// queryFlags are the checks of a rollout as flags. Each says NAME=…, and NAME
// ties them together; a query may hold any character, "=" and "," included.
type queryFlags struct {
	prometheus string
	queries    []string
	max        []string
	min        []string
	provider   []string
	timeout    []string
	file       string
}

func (q *queryFlags) add(fl *pflag.FlagSet) {
	fl.StringVar(&q.prometheus, "prometheus", "", "base URL of the Prometheus-compatible API that answers the queries")
	fl.StringArrayVar(&q.queries, "query", nil, "NAME=PROMQL, a further check; may be repeated")
	fl.StringArrayVar(&q.max, "max", nil, "NAME=VALUE, breach when the query's result is above")
	fl.StringArrayVar(&q.min, "min", nil, "NAME=VALUE, breach when the query's result is below")
	fl.StringArrayVar(&q.provider, "provider", nil, "NAME=PLUGIN, the analysis plugin that measures it (default prometheus); a check by itself when no --query has the name")
	fl.StringArrayVar(&q.timeout, "query-timeout", nil, "NAME=DURATION, how long one measurement may take (default 3s)")
	fl.StringVar(&q.file, "analysis-file", "", "JSON file with further checks, - for stdin")
}

func (q *queryFlags) parse(a *app) ([]*donav1.AnalysisQuery, error) {
	var out []*donav1.AnalysisQuery
	byName := map[string]*donav1.AnalysisQuery{}
	hasMax := map[string]bool{}
	for _, text := range q.queries {
		name, query, err := assignment("--query", text)
		if err != nil {
			return nil, err
		}
		if byName[name] != nil {
			return nil, usage("--query names %s twice: allowed is one query of a name", limits.Quote(name))
		}
		byName[name] = &donav1.AnalysisQuery{Name: name, Query: query, PrometheusUrl: q.prometheus}
		out = append(out, byName[name])
	}
	// A plugin may need no query: naming it for a new name is a check by itself.
	for _, text := range q.provider {
		name, _, err := assignment("--provider", text)
		if err != nil {
			return nil, err
		}
		if byName[name] == nil {
			byName[name] = &donav1.AnalysisQuery{Name: name}
			out = append(out, byName[name])
		}
	}
	each := func(flag string, texts []string, set func(query *donav1.AnalysisQuery, value string) error) error {
		given := map[string]bool{}
		for _, text := range texts {
			name, value, err := assignment(flag, text)
			switch {
			case err != nil:
				return err
			case byName[name] == nil:
				return usage("%s is for %s, which no --query and no --provider names", flag, limits.Quote(name))
			case given[name]:
				return usage("%s is given twice for %s", flag, limits.Quote(name))
			}
			given[name] = true
			if err := set(byName[name], value); err != nil {
				return usage("%s for %s %v", flag, limits.Quote(name), err)
			}
		}
		return nil
	}
	steps := []error{
		each("--max", q.max, func(query *donav1.AnalysisQuery, value string) (err error) {
			hasMax[query.GetName()] = true
			query.MaxValue, err = number(value)
			return err
		}),
		each("--min", q.min, func(query *donav1.AnalysisQuery, value string) (err error) {
			query.HasMinValue = true
			query.MinValue, err = number(value)
			return err
		}),
		each("--provider", q.provider, func(query *donav1.AnalysisQuery, value string) error {
			query.Provider = value
			return limits.Name(value)
		}),
		each("--query-timeout", q.timeout, func(query *donav1.AnalysisQuery, value string) error {
			d, err := time.ParseDuration(value)
			if err != nil || d < time.Millisecond || d > limits.QueryTimeoutMS*time.Millisecond {
				return fmt.Errorf("is %s: allowed are 1ms to %s", limits.Quote(value), limits.QueryTimeoutMS*time.Millisecond)
			}
			query.TimeoutMs = uint32(d / time.Millisecond)
			return nil
		}),
	}
	for _, err := range steps {
		if err != nil {
			return nil, err
		}
	}
	for _, query := range out {
		query.NoMaxValue = !hasMax[query.GetName()]
		if query.NoMaxValue && !query.GetHasMinValue() && query.GetProvider() == "" {
			return nil, usage("--query %s has no bound: say --max %s=VALUE or --min %s=VALUE", limits.Quote(query.GetName()), query.GetName(), query.GetName())
		}
		if query.GetPrometheusUrl() == "" && query.GetProvider() == "" {
			return nil, usage("--query wants --prometheus URL, the API that answers it")
		}
	}
	if q.prometheus != "" && len(out) == 0 {
		return nil, usage("--prometheus is for --query, and none is given")
	}
	fromFile, err := q.read(a)
	return append(out, fromFile...), err
}

// assignment splits NAME=VALUE at the first "=".
func assignment(flag, text string) (name, value string, err error) {
	name, value, ok := strings.Cut(text, "=")
	if !ok || value == "" {
		return "", "", usage("%s is %s: allowed is NAME=VALUE", flag, limits.Quote(text))
	}
	if err := limits.Name(name); err != nil {
		return "", "", usage("%s: the name %v", flag, err)
	}
	return name, value, nil
}

func number(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || v != v || v-v != 0 {
		return 0, fmt.Errorf("is %s: allowed is a finite number", limits.Quote(text))
	}
	return v, nil
}

// read takes the checks of --analysis-file.
func (q *queryFlags) read(a *app) ([]*donav1.AnalysisQuery, error) {
	if q.file == "" {
		return nil, nil
	}
	raw, err := a.readInput(q.file)
	if err != nil {
		return nil, configuration("--analysis-file: %v", err)
	}
	if raw = bytes.TrimSpace(raw); len(raw) > 0 && raw[0] == '[' {
		raw = append(append([]byte(`{"analysis":`), raw...), '}')
	}
	var holder donav1.StartRolloutRequest
	if err := protojson.Unmarshal(raw, &holder); err != nil {
		return nil, configuration("--analysis-file %s: %s: allowed is a JSON array of dona.v1.AnalysisQuery, or an object with it under \"analysis\"", q.file, oneLine(err))
	}
	if len(holder.GetAnalysis()) == 0 {
		return nil, configuration("--analysis-file %s holds no check under \"analysis\"", q.file)
	}
	return holder.GetAnalysis(), nil
}

// readInput reads a file, or stdin for "-", up to maxInput.
func (a *app) readInput(name string) ([]byte, error) {
	in := a.stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, maxInput+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxInput {
		return nil, fmt.Errorf("%s is too long: allowed are %d bytes", name, maxInput)
	}
	return raw, nil
}

// oneLine drops the line breaks and the random blanks of protojson's errors.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
