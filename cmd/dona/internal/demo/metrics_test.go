package demo

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestQueryIsAnsweredAsPrometheusDoes(t *testing.T) {
	source := func(variant string) (time.Duration, int) {
		if variant == "v2" {
			return 12500 * time.Microsecond, 40
		}
		return 0, 0
	}
	ask := func(query string) (int, string, []string) {
		r := httptest.NewRequest(http.MethodPost, "/api/v1/query", strings.NewReader(url.Values{"query": {query}}.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		answerQuery(w, r, source)
		var reply struct {
			Status string
			Data   struct {
				ResultType string
				Result     []struct{ Value []any }
			}
		}
		if err := json.Unmarshal(w.Body.Bytes(), &reply); err != nil {
			t.Fatalf("%s: %v in %s", query, err, w.Body)
		}
		var values []string
		for _, r := range reply.Data.Result {
			values = append(values, r.Value[1].(string))
		}
		return w.Code, reply.Status, values
	}
	for _, c := range []struct {
		query  string
		code   int
		status string
		values []string
	}{
		{query("v2"), 200, "success", []string{"12.500"}},
		{query("v9"), 200, "success", nil}, // nothing measured: no series, not a zero
		{"up", 400, "error", nil},
		{query("v2") + " or vector(0)", 400, "error", nil},
	} {
		code, status, values := ask(c.query)
		if code != c.code || status != c.status || !slices.Equal(values, c.values) {
			t.Errorf("%s: got %d %s %v, want %d %s %v", c.query, code, status, values, c.code, c.status, c.values)
		}
	}
}

func TestQuantile(t *testing.T) {
	tr := &traffic{variants: map[string]*tally{}}
	if _, n := tr.quantile("v1", 0.95); n != 0 {
		t.Errorf("%d samples of a variant without requests", n)
	}
	tr.count("v1", true, time.Now().Add(-2*recent), time.Hour) // too old
	for i := range 100 {
		tr.count("v1", true, time.Now(), time.Duration(i+1)*time.Millisecond)
	}
	if got, n := tr.quantile("v1", 0.95); got != 96*time.Millisecond || n != 100 {
		t.Errorf("the 0.95 quantile is %s of %d, want 96ms of 100", got, n)
	}
}
