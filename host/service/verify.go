package service

import (
	"errors"
	"fmt"

	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/store"
)

// Verify reads every record that shapes the snapshot of a service and says which do
// not parse, or disagree with the counts of the head; records is how many were read.
func (p *Plane) Verify(tx store.ReadTx, service string) (records int, problems []string, err error) {
	v := &verifier{tx: tx}
	var head statev1.ServiceHead
	v.read(headKey(service), &head)
	endpoints := v.all(endpointIndex(service), func(id string) string { return endpointKey(service, id) },
		func() proto.Message { return new(statev1.EndpointState) })
	flags := v.all(flagIndex(service), func(flag string) string { return flagKey(service, flag) },
		func() proto.Message { return new(statev1.FlagState) })
	v.all(ingressIndex(service), ingressKey, func() proto.Message { return new(statev1.IngressState) })
	var weights statev1.Weights
	v.read(weightsKey(service), &weights)
	for key, m := range map[string]proto.Message{
		quarantineKey(service): new(statev1.Quarantine), policyKey(service): new(statev1.Policy),
		planKey(service): new(statev1.PlanState), planningKey(service): new(statev1.Planning),
		sharedKey(service): new(statev1.SharedState),
	} {
		v.read(key, m)
	}
	if v.err != nil {
		return 0, nil, v.err
	}
	if int(head.Endpoints) != endpoints || int(head.Flags) != flags {
		v.problem("the head counts %d endpoints and %d flags, there are %d and %d", head.Endpoints, head.Flags, endpoints, flags)
	}
	live := 0
	for _, c := range head.Cells {
		live += int(c.Live)
	}
	if live > endpoints {
		v.problem("the head counts %d live endpoints of %d", live, endpoints)
	}
	sum := uint32(0)
	for _, w := range weights.Weights {
		sum += w.Weight
	}
	if len(weights.Weights) > 0 && sum != 100 {
		v.problem("the weights sum to %d, not 100", sum)
	}
	return v.records, v.problems, nil
}

// verifier reads on after what does not parse, and not after an error of the store.
type verifier struct {
	tx       store.ReadTx
	records  int
	problems []string
	err      error
}

func (v *verifier) problem(format string, args ...any) {
	v.problems = append(v.problems, fmt.Sprintf(format, args...))
}

func (v *verifier) read(key string, m proto.Message) (exists bool) {
	rec, err := v.tx.Get(key)
	if err != nil {
		v.err = errors.Join(v.err, err)
		return false
	}
	if !rec.Exists() {
		return false
	}
	if err := parse(key, rec.Value, m); errors.Is(err, errLacking) {
		v.problem("record %s: %v", key, errLacking)
		return true
	} else if err != nil {
		v.problem("record %s does not parse as %s", key, m.ProtoReflect().Descriptor().FullName())
		return true
	}
	v.records++
	return true
}

// all reads what an index names, and counts the records that are there. What an
// index names and is not there is no harm.
func (v *verifier) all(index string, key func(member string) string, fresh func() proto.Message) (n int) {
	entries, err := v.tx.Scan(index, 0, store.MaxScore, 0)
	if err != nil {
		v.err = errors.Join(v.err, err)
		return 0
	}
	if err := store.Fetch(v.tx, entries, key); err != nil {
		v.err = errors.Join(v.err, err)
		return 0
	}
	for _, e := range entries {
		if v.read(key(e.Member), fresh()) {
			n++
		}
	}
	return n
}
