// Package ownership is the pure core of the egress plane: who owns a proxy, when that
// ends, and what a worker's word counts for. Its functions take records and the time
// and change the records or say why not; host/pool reads and writes those in its
// transactions. No I/O, no clock of its own.
//
// What it keeps true: a proxy has at most one owner; it leaves one only after that
// worker has acknowledged a view without it and reported no use of it, or after the
// worker must have closed everything; nothing is extracted that is owned or may be in
// use. Times are the store's, in milliseconds.
package ownership

import (
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
)

// The states of a proxy.
const (
	New       = controlplanev1.ProxyStatus_STATE_NEW
	Available = controlplanev1.ProxyStatus_STATE_AVAILABLE
	Suspect   = controlplanev1.ProxyStatus_STATE_SUSPECT
	Unhealthy = controlplanev1.ProxyStatus_STATE_UNHEALTHY
	Extracted = controlplanev1.ProxyStatus_STATE_EXTRACTED
	Expired   = controlplanev1.ProxyStatus_STATE_EXPIRED
)

// Free reports whether a proxy may get an owner or be extracted, as long as it has
// time left: it is available, nobody owns it and nobody can still be using it.
func Free(p *statev1.ProxyState) bool {
	return p.State == Available && p.Owner == "" && p.Holder == ""
}

// Assign makes a worker the owner of a free proxy that has time left, and reports
// whether it did.
func Assign(p *statev1.ProxyState, worker string, now int64) bool {
	if !Free(p) || now >= p.UsableMs {
		return false
	}
	p.Owner = worker
	p.AssignmentEpoch++
	return true
}

// Extract gives a free proxy away for good, if it is usable until then at least, and
// reports whether it did.
func Extract(p *statev1.ProxyState, extraction string, until int64) bool {
	if !Free(p) || p.UsableMs < until {
		return false
	}
	p.State, p.ExtractionId = Extracted, extraction
	return true
}

// Visible reports whether a proxy belongs into its owner's view: it is not being
// drained and may be used from now on.
func Visible(p *statev1.ProxyState, worker string, draining bool, now int64) bool {
	return p.Owner == worker && !draining && now < p.UsableMs &&
		(p.State == Available || p.State == Suspect || p.State == Unhealthy)
}

// Expire ends a proxy whose time is over, or that is evicted. Who owned it becomes its
// holder: uses that began before may go on, and views of ownership epoch and later
// lack it.
func Expire(p *statev1.ProxyState, epoch uint64, now int64) {
	p.State = Expired
	p.UsableMs = min(p.UsableMs, now)
	p.ExpiresMs = min(p.ExpiresMs, max(now, p.UsableMs))
	if p.Owner != "" {
		p.Holder, p.HeldEpoch = p.Owner, epoch
		p.Owner = ""
	}
}

// Refresh sets a proxy's end, after it was listed again: never earlier than it was,
// since its owner counts on it. One that has expired begins anew as not yet checked;
// where a holder may still be using it, that worker owns it again and owes a drain,
// and Refresh reports so. One that is extracted stays as it is.
func Refresh(p *statev1.ProxyState, expires, usable int64) (owesDrain bool) {
	switch p.State {
	case Extracted:
		return false
	case Expired:
		p.State, p.UnhealthyMs, p.LastError, p.DeniedRoutings = New, 0, "", nil
		p.ExpiresMs, p.UsableMs = expires, usable
		if p.Holder != "" {
			p.Owner, p.Holder, p.HeldEpoch = p.Holder, "", 0
			return true
		}
		return false
	}
	p.ExpiresMs, p.UsableMs = max(p.ExpiresMs, expires), max(p.UsableMs, usable)
	return false
}

// Finding is what checks found out about a proxy.
type Finding struct {
	State     controlplanev1.ProxyStatus_State // Available, Suspect or Unhealthy
	EgressIP  string                           // empty = as before
	LastError string
	Denied    []string // routings that may not use it
	AtMs      int64
}

// Find takes a finding over, and reports whether it says anything of this proxy: one
// that is extracted, expired or unknown states says nothing. It is the only way out
// of NEW.
func Find(p *statev1.ProxyState, f Finding) bool {
	if p.State == Extracted || p.State == Expired {
		return false
	}
	switch f.State {
	case Available, Suspect:
		p.UnhealthyMs = 0
	case Unhealthy:
		if p.State != Unhealthy {
			p.UnhealthyMs = f.AtMs
		}
	default:
		return false
	}
	p.State, p.LastError, p.DeniedRoutings, p.CheckedMs = f.State, f.LastError, f.Denied, f.AtMs
	if f.EgressIP != "" {
		p.EgressIp = f.EgressIP
	}
	return true
}

// Health is a proxy's state as its owner sees it.
func Health(s controlplanev1.ProxyStatus_State) controlplanev1.Health {
	switch s {
	case Available:
		return controlplanev1.Health_HEALTH_AVAILABLE
	case Suspect:
		return controlplanev1.Health_HEALTH_SUSPECT
	case Unhealthy:
		return controlplanev1.Health_HEALTH_UNHEALTHY
	}
	return controlplanev1.Health_HEALTH_UNSPECIFIED
}
