package prometheus

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// errNoSeries is the reading of an empty vector.
var errNoSeries = errors.New("no series: the query matched nothing")

// answer is the part of the HTTP API's reply that decides.
type answer struct {
	Status    string   `json:"status"`
	ErrorType string   `json:"errorType"`
	Error     string   `json:"error"`
	Warnings  []string `json:"warnings"`
	Data      struct {
		ResultType string          `json:"resultType"`
		Result     json.RawMessage `json:"result"`
	} `json:"data"`
}

// sample is a point of time and a number, as text.
type sample struct {
	value float64
}

func (s *sample) UnmarshalJSON(data []byte) error {
	var pair []json.RawMessage
	if err := json.Unmarshal(data, &pair); err != nil || len(pair) != 2 {
		return errors.New("a sample is not a pair of time and value")
	}
	var at float64
	var text string
	if json.Unmarshal(pair[0], &at) != nil || json.Unmarshal(pair[1], &text) != nil {
		return errors.New("a sample is not a pair of time and value")
	}
	// A decimal number, or one of the three names that Prometheus writes. What is
	// out of range is no +Inf: nobody measured that.
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || strings.ContainsAny(text, "xX_") || math.IsInf(v, 0) && text != "+Inf" && text != "-Inf" {
		return fmt.Errorf("a value is %.32q, not a number", text)
	}
	s.value = v
	return nil
}

// strict refuses an object that names a key twice, or one of ours in another
// case: encoding/json would take the last of them. A series' own labels are free.
func strict(raw []byte) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	type level struct {
		keys   map[string]bool // nil in an array
		labels bool
	}
	var open []level
	var name string // the key whose value comes next
	key := false    // a key comes next
	for {
		token, err := d.Token()
		if err != nil {
			return nil //nolint:nilerr // what is no JSON is told by who decodes it
		}
		switch token {
		case json.Delim('{'):
			open, key = append(open, level{keys: map[string]bool{}, labels: name == "metric"}), true
			continue
		case json.Delim('['):
			open, key = append(open, level{}), false
			continue
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
		default:
			if !key {
				break
			}
			name, _ = token.(string)
			in := open[len(open)-1]
			folded := strings.ToLower(name)
			if !in.labels && (in.keys[folded] || known[folded] != "" && known[folded] != name) {
				return fmt.Errorf("bad body: the key %.32q is there twice or in another case", name)
			}
			in.keys[folded] = true
			key = false
			continue
		}
		key = len(open) > 0 && open[len(open)-1].keys != nil
	}
}

// known are the keys that are read, by themselves in lower case.
var known = map[string]string{"status": "status", "data": "data", "resulttype": "resultType", "result": "result", "value": "value",
	"histogram": "histogram", "warnings": "warnings", "error": "error", "errortype": "errorType", "metric": "metric"}

// read takes the one number out of an answer. Any other form is an error whose
// text begins with the reason.
func read(raw []byte, allowPartial bool) (float64, error) {
	var a answer
	d := json.NewDecoder(bytes.NewReader(raw))
	if err := d.Decode(&a); err != nil {
		return 0, errors.New("bad body: not the JSON of a query's answer")
	}
	if _, err := d.Token(); err != io.EOF {
		return 0, errors.New("bad body: more than one JSON value")
	}
	if err := strict(raw); err != nil {
		return 0, err
	}
	switch {
	case a.Status == "error" && a.Error == "":
		return 0, errors.New("bad body: the server says error and not which")
	case a.Status == "error":
		return 0, fmt.Errorf("bad body: the server says %s: %s", a.ErrorType, a.Error)
	case a.Status != "success":
		return 0, fmt.Errorf("bad body: status is %.32q", a.Status)
	case len(a.Warnings) > 0 && !allowPartial:
		return 0, fmt.Errorf("partial: %d warnings, the first: %s", len(a.Warnings), a.Warnings[0])
	}
	switch a.Data.ResultType {
	case "scalar":
		var s sample
		if err := unmarshal(a.Data.Result, &s); err != nil {
			return 0, err
		}
		return s.value, nil
	case "vector":
		return readVector(a.Data.Result)
	case "string", "matrix":
		return 0, fmt.Errorf("type: the answer is a %s, not a number", a.Data.ResultType)
	}
	return 0, fmt.Errorf("type: the answer is a %.32q, not a number", a.Data.ResultType)
}

func readVector(result json.RawMessage) (float64, error) {
	var series []struct {
		Value     *sample         `json:"value"`
		Histogram json.RawMessage `json:"histogram"`
	}
	if err := unmarshal(result, &series); err != nil {
		return 0, err
	}
	switch {
	case series == nil:
		return 0, errors.New("bad body: the result is absent")
	case len(series) == 0:
		return 0, errNoSeries
	case len(series) > 1:
		return 0, fmt.Errorf("ambiguous %d: the query matched more than one series", len(series))
	case series[0].Histogram != nil:
		return 0, errors.New("type: the answer is a histogram, not a number")
	case series[0].Value == nil:
		return 0, errors.New("bad body: a series without a value")
	}
	return series[0].Value.value, nil
}

func unmarshal(data json.RawMessage, v any) error {
	if len(data) == 0 {
		return errors.New("bad body: the result is absent")
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("bad body: %w", err)
	}
	return nil
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
