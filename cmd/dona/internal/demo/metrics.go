package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"time"
)

// metricName is the one metric that the demo serves: the 95th percentile of a
// variant's answers as the client measured them, in milliseconds.
const metricName = "checkout_latency_p95_ms"

var selector = regexp.MustCompile(`^\s*` + metricName + `\s*\{\s*variant\s*=\s*"([^"\\]*)"\s*\}\s*$`)

// query is the selector for one variant.
func query(variant string) string { return fmt.Sprintf("%s{variant=%q}", metricName, variant) }

// metrics answers instant queries the way a Prometheus server does, from the
// latencies that the client measures. It knows selectors of metricName by
// variant and says so when it is asked for something else.
type metrics struct {
	server *http.Server
	url    string
	ended  chan struct{}
}

func serveMetrics(source func(variant string) (time.Duration, int)) (*metrics, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/api/v1/query", func(w http.ResponseWriter, r *http.Request) { answerQuery(w, r, source) })
	m := &metrics{
		server: &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second},
		url:    "http://" + listener.Addr().String(),
		ended:  make(chan struct{}),
	}
	go func() {
		defer close(m.ended)
		_ = m.server.Serve(listener) // ends by close; before that the checks are MISSING, and the demo fails
	}()
	return m, nil
}

func (m *metrics) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if m.server.Shutdown(ctx) != nil {
		_ = m.server.Close()
	}
	<-m.ended
}

func answerQuery(w http.ResponseWriter, r *http.Request, source func(string) (time.Duration, int)) {
	reply := func(code int, body any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(body) // the asker went away
	}
	match := selector.FindStringSubmatch(r.FormValue("query"))
	if match == nil {
		reply(http.StatusBadRequest, map[string]any{
			"status": "error", "errorType": "bad_data",
			"error": "this server knows one query: " + query("VARIANT"),
		})
		return
	}
	result := []any{}
	if value, samples := source(match[1]); samples > 0 {
		ms := strconv.FormatFloat(float64(value)/float64(time.Millisecond), 'f', 3, 64)
		result = append(result, map[string]any{
			"metric": map[string]string{"__name__": metricName, "variant": match[1]},
			"value":  []any{float64(time.Now().UnixMilli()) / 1000, ms},
		})
	}
	reply(http.StatusOK, map[string]any{
		"status": "success",
		"data":   map[string]any{"resultType": "vector", "result": result},
	})
}
