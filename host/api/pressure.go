package api

import (
	"sync"
	"sync/atomic"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Percent of the memory limit from which calls are refused, most needed last.
const (
	shedStreams  = 80 // no new streams but those of operators and heartbeats, and each second report of outcomes
	shedCalls    = 90 // nothing but operators, audit and heartbeats
	shedControl  = 95 // nothing but heartbeats and liveness
	pressureLook = 100 * time.Millisecond
)

// pressure says what is served at the memory that is in use. The zero value serves
// everything. Streams that are open go on: what they need is bounded elsewhere.
type pressure struct {
	read func() (used, limit uint64)

	mu      sync.Mutex
	looked  time.Time
	percent uint64
	halved  atomic.Uint64 // reports of outcomes that were looked at while half of them is served
}

func (p *pressure) serves(c Class, stream bool, now time.Time) bool {
	if p.read == nil || c == Vital {
		return true
	}
	switch percent := p.now(now); {
	case percent < shedStreams:
		return true
	case percent < shedCalls && c == Outcomes:
		return p.halved.Add(1)%2 == 0 // who is refused keeps what it has counted, and reports it later, with more
	case percent < shedCalls:
		return c == Control || !stream
	case percent < shedControl:
		return c == Control
	}
	return false
}

func (p *pressure) now(now time.Time) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.looked) >= pressureLook {
		used, limit := p.read()
		p.looked, p.percent = now, 0
		if limit > 0 {
			p.percent = used * 100 / limit
		}
	}
	return p.percent
}

// class is that of the rule, but that a report with audits is one that has to be on
// record.
func class(rule Rule, req any) Class {
	if batch, ok := req.(*donav1.StatsBatch); ok && len(batch.GetAudits()) > 0 {
		return max(rule.Class, Control)
	}
	return rule.Class
}

func shed() error {
	s := status.New(codes.ResourceExhausted, "this host is short of memory and refuses what can wait: try another host, or again later")
	if with, err := s.WithDetails(&errdetails.ErrorInfo{Reason: "memory", Domain: "dona"}, &errdetails.RetryInfo{RetryDelay: durationpb.New(5 * time.Second)}); err == nil {
		s = with
	}
	return s.Err()
}
