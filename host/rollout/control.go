package rollout

import (
	"context"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"

	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
)

// Control does what an operator asks of a service's rollout, in one durable
// transaction with its audit entry, and returns the status right after it.
//
// Refusals: Invalid; NotFound when the service or its rollout does not exist;
// Precondition when the state does not allow the verb: the table in
// docs/rollouts.md. LIFT_QUARANTINE needs no rollout.
func (c *Controller) Control(ctx context.Context, actor string, req *donav1.ControlRolloutRequest) (*donav1.RolloutStatus, error) {
	if err := CheckControl(req); err != nil {
		return nil, err
	}
	service := req.GetService()
	var status *donav1.RolloutStatus
	var event Event
	var after *statev1.Rollout
	err := c.o.Store.Update(ctx, store.Hard, func(tx store.Tx) (err error) {
		status, event, after = nil, None, nil
		exists, err := c.o.Service.Exists(tx, service)
		if err != nil {
			return err
		}
		if !exists {
			return refusal.New(refusal.NotFound, "there is no service %s", service)
		}
		if op, ok := opOf(req.GetAction()); ok {
			after, event, err = c.operate(tx, actor, service, op, req.GetReason())
		} else {
			err = c.lift(tx, actor, service, req.GetVariant(), liftReason(req.GetReason()))
		}
		if err != nil {
			return err
		}
		status, err = c.Status(tx, service)
		return err
	})
	if err != nil {
		return nil, err
	}
	c.took(service, event, after)
	c.again()
	if status == nil { // a quarantine without a rollout
		status = &donav1.RolloutStatus{Service: service}
	}
	return status, nil
}

func (c *Controller) operate(tx store.Tx, actor, service string, op Op, reason string) (*statev1.Rollout, Event, error) {
	s, err := c.scene(tx, service)
	if err != nil {
		return nil, None, err
	}
	if s == nil {
		return nil, None, refusal.New(refusal.NotFound, "service %s has no rollout", service)
	}
	s.evidence.Op, s.evidence.OpReason = op, reason
	d := Step(s.state, s.evidence, s.now)
	if d.Refused != "" {
		return nil, None, &refusal.Error{Kind: refusal.Precondition, Field: "action", Text: "is " + op.String() + ": " + d.Refused}
	}
	after, err := c.commit(tx, service, s, d, actor)
	return after, d.Event, err
}

func liftReason(reason string) string {
	if reason == "" {
		return "lifted by an operator"
	}
	return reason
}
