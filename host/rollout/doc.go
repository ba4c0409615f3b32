// Package rollout moves a service's traffic to a canary step by step, and back
// at once when the canary is worse.
//
// [Step] decides: a pure function of the rollout, the evidence and the time.
// The [Controller] is the thin edge around it: once a second it reads each live
// rollout, its evidence and its endpoints, and writes what Step decided in one
// store transaction together with the weights, the quarantine and the audit
// entry. Any host may tick; every tick re-reads what is, so two tickers take no
// step twice, and a restart goes on where the record says.
//
// Evidence comes from two sides: what clients report ([Controller.Report] adds
// it up inside the caller's transaction) and what analysis plugins measure
// through an [Analyzer]. Evidence that is missing, late or makes no sense is
// MISSING: it holds a rollout and never moves it, in either direction.
//
// Callers are host/api (Start, Control, Status, Stats), host/session (Report)
// and the host's wiring (New, Run).
package rollout
