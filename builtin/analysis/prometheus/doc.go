// Package prometheus is the built-in analysis plugin "prometheus": one instant
// query against a Prometheus-compatible API.
//
// sdk/plugin serves [Evaluate]; the host compares the value with the query's
// bounds. What it promises: only a finite number that the server measured at
// its own now is a value. Everything else is MISSING with the reason first in
// the detail, except plus infinity, which no bound admits and which is a BREACH.
// The server's raw answer is the evidence.
package prometheus
