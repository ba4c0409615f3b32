package render

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
)

// Proxies is the table of proxies.
func (s Style) Proxies(proxies []*controlplanev1.ProxyStatus) []string {
	t := &table{right: columns(5, 6)}
	t.paint = func(row, col int) string {
		if col != 3 {
			return ""
		}
		return proxyColor(proxies[row-1].GetState())
	}
	t.add("PROXY", "UPSTREAM", "ADDRESS", "STATE", "OWNER", "ACTIVE", "RESERVED", "EXPIRES", "EGRESS", "ERROR")
	for _, p := range proxies {
		x := p.GetProxy()
		t.add(Clean(x.GetProxyId()), Clean(x.GetUpstream()), Clean(proxyURL(x, nil)), ProxyState(p.GetState()), dash(p.GetOwnerWorkerId()),
			strconv.FormatUint(uint64(p.GetActive()), 10), strconv.FormatUint(uint64(p.GetReserved()), 10), stamp(x.GetExpiresAt()), dash(p.GetEgressIp()), Clean(p.GetLastError()))
	}
	return t.lines(s)
}

// ProxyState is the state's name as the documentation writes it.
func ProxyState(state controlplanev1.ProxyStatus_State) string {
	return strings.TrimPrefix(state.String(), "STATE_")
}

func proxyColor(state controlplanev1.ProxyStatus_State) string {
	switch state {
	case controlplanev1.ProxyStatus_STATE_AVAILABLE:
		return green
	case controlplanev1.ProxyStatus_STATE_UNHEALTHY:
		return red
	case controlplanev1.ProxyStatus_STATE_SUSPECT, controlplanev1.ProxyStatus_STATE_NEW:
		return yellow
	}
	return ""
}

// proxyURL spells a proxy as lists do, with credentials when there are some.
func proxyURL(p *controlplanev1.Proxy, c *controlplanev1.Credential) string {
	scheme := strings.ToLower(strings.TrimPrefix(p.GetProtocol().String(), "PROTOCOL_"))
	u := url.URL{Scheme: scheme, Host: net.JoinHostPort(p.GetHost(), strconv.FormatUint(uint64(p.GetPort()), 10))}
	if c.GetUsername() != "" {
		u.User = url.UserPassword(c.GetUsername(), c.GetPassword())
	}
	return u.String()
}

func stamp(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return when(t.GetSeconds())
}

// Workers is the table of workers. now is for how long their sessions last.
func (s Style) Workers(workers []*controlplanev1.WorkerStatus, now time.Time) []string {
	t := &table{right: columns(4, 5, 6)}
	t.paint = func(row, col int) string {
		w := workers[row-1]
		switch {
		case col != 3:
			return ""
		case w.GetFenced():
			return red
		case !w.GetConnected():
			return yellow
		}
		return green
	}
	t.add("WORKER", "INSTANCE", "ZONE", "STATE", "SNAPSHOT", "OWNED", "DRAINING", "SESSION")
	for _, w := range workers {
		state := "connected"
		switch {
		case w.GetFenced():
			state = "fenced" // it refused its last snapshot
		case !w.GetConnected():
			state = "away"
		}
		session := "ended"
		if left := w.GetSessionExpiresAt().AsTime().Sub(now); w.GetSessionExpiresAt() != nil && left > 0 {
			session = Seconds(left) + " left"
		}
		t.add(Clean(w.GetWorkerId()), Clean(w.GetInstanceId()), dash(w.GetZone()), state, strconv.FormatUint(w.GetAcknowledgedVersion(), 10),
			strconv.FormatUint(uint64(w.GetOwnedProxies()), 10), strconv.FormatUint(uint64(w.GetDrainingProxies()), 10), session)
	}
	return t.lines(s)
}

// poolStates are the columns of Availability.
var poolStates = []controlplanev1.ProxyStatus_State{
	controlplanev1.ProxyStatus_STATE_NEW, controlplanev1.ProxyStatus_STATE_AVAILABLE, controlplanev1.ProxyStatus_STATE_SUSPECT,
	controlplanev1.ProxyStatus_STATE_UNHEALTHY, controlplanev1.ProxyStatus_STATE_EXTRACTED,
}

// Availability is the table of upstreams.
func (s Style) Availability(upstreams []*controlplanev1.UpstreamAvailability) []string {
	t := &table{right: columns(2, 3, 4, 5, 6, 7)}
	t.paint = func(row, col int) string {
		u := upstreams[row-1]
		switch {
		case col != 1:
			return ""
		case u.GetBrake():
			return red
		case !u.GetEnabled():
			return yellow
		}
		return green
	}
	heading := []string{"UPSTREAM", "STATE"}
	for _, state := range poolStates {
		heading = append(heading, ProxyState(state))
	}
	t.add(append(heading, "UNOWNED")...)
	for _, u := range upstreams {
		state := "enabled"
		if !u.GetEnabled() {
			state = "disabled"
		}
		if u.GetBrake() {
			state += ", brake" // too many fail at once: nothing is demoted
		}
		row := []string{Clean(u.GetUpstream()), state}
		for _, state := range poolStates {
			row = append(row, strconv.FormatUint(uint64(u.GetByState()[ProxyState(state)]), 10))
		}
		t.add(append(row, strconv.FormatUint(uint64(u.GetUnownedAvailable()), 10))...)
	}
	return t.lines(s)
}

// DrainLine says in one line how far a drain is.
func DrainLine(d *controlplanev1.DrainTicket) string {
	who := Clean(d.GetProxyId())
	switch worker := dash(d.GetWorkerId()); d.GetState() {
	case controlplanev1.DrainTicket_STATE_PENDING:
		return fmt.Sprintf("%s leaves %s: PENDING, until a snapshot without it is on its way", who, worker)
	case controlplanev1.DrainTicket_STATE_BOUND:
		return fmt.Sprintf("%s leaves %s: BOUND, until it has taken snapshot %d and nothing uses the proxy", who, worker, d.GetBarrierVersion())
	case controlplanev1.DrainTicket_STATE_FORCE_RELEASED:
		return fmt.Sprintf("%s is nobody's: FORCE_RELEASED, %s was silent for too long", who, worker)
	}
	return fmt.Sprintf("%s is nobody's: %s", who, strings.TrimPrefix(d.GetState().String(), "STATE_"))
}

// Import says what an import did.
func Import(r *controlplanev1.ImportProxiesResponse) []string {
	lines := []string{fmt.Sprintf("%d added, %d refreshed, %d rejected", r.GetAdded(), r.GetRefreshed(), len(r.GetRejected()))}
	for _, text := range r.GetRejected() {
		lines = append(lines, "  "+Clean(text))
	}
	return lines
}

// Extraction lists what was given, with its credentials: that is what it is for.
func (s Style) Extraction(r *controlplanev1.ExtractResponse) []string {
	t := &table{}
	t.add("PROXY", "USABLE UNTIL", "EXPIRES", "ID")
	for _, p := range r.GetProxies() {
		x := p.GetProxy()
		t.add(Clean(proxyURL(x, p.GetCredential())), stamp(x.GetUsableUntil()), stamp(x.GetExpiresAt()), Clean(x.GetProxyId()))
	}
	said := "extraction " + Clean(r.GetExtractionId())
	if r.GetReplayed() {
		said += ", as answered before"
	}
	if r.GetShortfall() > 0 {
		said += fmt.Sprintf(": %d fewer than asked for; more are being taken from workers", r.GetShortfall())
	}
	return append(t.lines(s), said)
}
