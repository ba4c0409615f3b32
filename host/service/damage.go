package service

import (
	"errors"
	"fmt"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/store"
)

// A record that does not hold takes nothing with it but itself. Whoever would write
// it anew, or take it away, does so; what is only derived from other records is made
// anew; a snapshot is built around a flag or an endpoint.

// parse reads a record of one of the state's messages. Bytes that parse and lack what
// the message is about are as damaged as those that do not.
func parse(key string, value []byte, m proto.Message) error {
	err := errUnparsed // the parser's own words help nobody
	if proto.Unmarshal(value, m) == nil {
		err = whole(m)
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", store.ErrDamaged, key, err)
	}
	return nil
}

var (
	errUnparsed = errors.New("it does not parse")
	errLacking  = errors.New("it lacks what it is about")
)

func whole(m proto.Message) error {
	switch s := m.(type) {
	case *statev1.EndpointState:
		if s.Endpoint.GetId() == "" {
			return errLacking
		}
	case *statev1.FlagState:
		if s.Rule.GetFlag() == "" {
			return errLacking
		}
	case *statev1.ServiceHead: // it would be taken for a service that is long gone
		if s.Service == "" {
			return errLacking
		}
	case *statev1.Policy: // without it every region would be allowed
		if s.Policy == nil {
			return errLacking
		}
	case *statev1.SharedState: // without it everyone might watch
		if s.Shared == nil {
			return errLacking
		}
	case *statev1.IngressState:
		if s.Ingress.GetService() == "" {
			return errLacking
		}
	}
	return nil
}

// load reads a record that may lack what it is about: version 0 when there is none, and an
// [store.ErrDamaged] when it does not hold.
func load(tx store.ReadTx, key string, m proto.Message) (version uint64, err error) {
	rec, err := tx.Get(key)
	if err != nil || !rec.Exists() {
		return 0, err
	}
	if err := parse(key, rec.Value, m); err != nil {
		return 0, err
	}
	return rec.Version, nil
}

// loadOld reads what is about to be written anew or deleted. m is empty when it is
// damaged, or not there; its version says which.
func loadOld(tx store.ReadTx, key string, m proto.Message) (version uint64, damaged bool, err error) {
	version, err = load(tx, key, m)
	if errors.Is(err, store.ErrDamaged) {
		proto.Reset(m)
		rec, err := tx.Get(key)
		return rec.Version, true, err
	}
	return version, false, err
}

// loadDerived reads what is made of other records; a damaged one is as good as none.
func loadDerived(tx store.ReadTx, key string, m proto.Message) (version uint64, err error) {
	version, _, err = loadOld(tx, key, m)
	return version, err
}

// recount makes a head's numbers from the records that they are about: what a damaged
// one was counted as is not known any more.
func (p *Plane) recount(tx store.ReadTx, service string, head *statev1.ServiceHead) error {
	head.Endpoints, head.Flags, head.Cells = 0, 0, nil
	bytes := 0
	endpoints, err := tx.Scan(endpointIndex(service), 0, 0, 0)
	if err != nil {
		return err
	}
	for _, e := range endpoints {
		var ep statev1.EndpointState
		version, damaged, err := loadOld(tx, endpointKey(service, e.Member), &ep)
		if err != nil {
			return err
		}
		if version == 0 {
			continue
		}
		head.Endpoints++
		if damaged {
			continue
		}
		bytes += endpointBytes(ep.Endpoint)
		at := cell(head, ep.Endpoint.Variant, ep.Endpoint.Region) // reports are of those that drain, too
		if live(&ep) {
			at.Live++
		}
	}
	flags, err := tx.Scan(flagIndex(service), 0, 0, 0)
	if err != nil {
		return err
	}
	for _, f := range flags {
		var flag statev1.FlagState
		version, damaged, err := loadOld(tx, flagKey(service, f.Member), &flag)
		if err != nil {
			return err
		}
		if version == 0 {
			continue
		}
		head.Flags++
		if !damaged {
			bytes += flagBytes(flag.Rule)
		}
	}
	var rest donav1.ConfigSnapshot
	if err := p.readRest(tx, service, &rest); err != nil {
		return err
	}
	bytes += weightBytes(rest.Weights) + itemBytes(rest.Residency) + itemBytes(rest.Plan)
	for _, v := range rest.QuarantinedVariants {
		bytes += quarantineBytes(v)
	}
	head.EncodedBytes = uint64(bytes)
	return nil
}
