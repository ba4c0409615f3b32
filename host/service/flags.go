package service

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/sdk/dona/match"
)

// CheckFlag says what is wrong with a SetFlag request by itself.
func CheckFlag(req *donav1.SetFlagRequest) error {
	rule := req.GetRule()
	if rule == nil {
		return refusal.Field("rule", "is absent: it names the service and the flag")
	}
	if err := refusal.Check("rule.service", limits.Service(rule.Service)); err != nil {
		return err
	}
	if err := refusal.Check("rule.flag", limits.Name(rule.Flag)); err != nil {
		return err
	}
	if req.Delete {
		return nil
	}
	if rule.RolloutPercent > 100 {
		return refusal.Field("rule.rollout_percent", "is %d: allowed are 0 to 100", rule.RolloutPercent)
	}
	if rule.RolloutVariant != "" || rule.RolloutPercent > 0 {
		if err := refusal.Check("rule.rollout_variant", limits.Name(rule.RolloutVariant)); err != nil {
			return err
		}
	}
	if rule.HashVersion > 1 {
		return refusal.Field("rule.hash_version", "is %d: known are 0 and 1 (dona-bucket-v1)", rule.HashVersion)
	}
	for i, t := range rule.Targeting {
		at := fmt.Sprintf("rule.targeting[%d].", i)
		if err := refusal.Check(at+"attribute", limits.Text(t.GetAttribute(), limits.AttributeLen)); err != nil {
			return err
		}
		if err := refusal.Check(at+"variant", limits.Name(t.GetVariant())); err != nil {
			return err
		}
	}
	// Clients compile a flag's rules by the same code: what they cannot follow is not
	// stored.
	var wrong *match.Error
	if errors.As(match.Check(rule.Targeting), &wrong) {
		return refusal.Field("rule."+wrong.Field, "%s", wrong.Text)
	}
	return nil
}

// SetFlag sets or deletes a flag. The same rule again changes nothing and
// writes no entry. Refusals: Invalid, NotFound (delete), Precondition
// (expected_version is not current), Exhausted (limits).
func (p *Plane) SetFlag(ctx context.Context, actor string, req *donav1.SetFlagRequest) error {
	if err := CheckFlag(req); err != nil {
		return err
	}
	rule := proto.Clone(req.Rule).(*donav1.FlagRule)
	rule.Version = 0 // the host's to say
	return p.store.Update(ctx, store.Hard, func(tx store.Tx) error {
		key := flagKey(rule.Service, rule.Flag)
		var old statev1.FlagState
		version, damaged, err := loadOld(tx, key, &old)
		if err != nil {
			return err
		}
		if req.Delete && version == 0 {
			return refusal.New(refusal.NotFound, "service %s has no flag %s", rule.Service, limits.Quote(rule.Flag))
		}
		if req.ExpectedVersion != 0 && req.ExpectedVersion != version {
			return &refusal.Error{Kind: refusal.Precondition, Field: "expected_version", Text: fmt.Sprintf(
				"is %d: flag %s is at version %d now; read it again", req.ExpectedVersion, limits.Quote(rule.Flag), version)}
		}
		if req.Delete {
			return p.deleteFlag(tx, actor, rule, &old, damaged)
		}
		if version != 0 && !damaged && proto.Equal(old.Rule, rule) {
			return nil
		}
		if err := store.Save(tx, key, &statev1.FlagState{Rule: rule}); err != nil {
			return err
		}
		if err := tx.IndexPut(flagIndex(rule.Service), rule.Flag, 0); err != nil {
			return err
		}
		c := change{configured: true, recount: damaged, bytes: flagBytes(rule)}
		if version != 0 {
			c.bytes -= flagBytes(old.Rule)
		} else {
			c.flags = 1
		}
		if err := p.touch(tx, rule.Service, c); err != nil {
			return err
		}
		return p.audit.Append(tx, rule.Service, audit.Entry{Kind: "flag.set", Actor: actor, Detail: flagDetail(rule)})
	})
}

func (p *Plane) deleteFlag(tx store.Tx, actor string, rule *donav1.FlagRule, old *statev1.FlagState, damaged bool) error {
	if err := tx.Delete(flagKey(rule.Service, rule.Flag)); err != nil {
		return err
	}
	if err := tx.IndexDelete(flagIndex(rule.Service), rule.Flag); err != nil {
		return err
	}
	if err := forgetExposures(tx, rule.Service, rule.Flag); err != nil {
		return err
	}
	if err := p.touch(tx, rule.Service, change{flags: -1, bytes: -flagBytes(old.Rule), recount: damaged}); err != nil {
		return err
	}
	return p.audit.Append(tx, rule.Service, audit.Entry{Kind: "flag.delete", Actor: actor, Detail: map[string]string{"flag": rule.Flag}})
}

// flagBytes is what a stored rule, which has no version, adds to the snapshot.
func flagBytes(rule *donav1.FlagRule) int { return elementBytes(proto.Size(rule) + maxVersionBytes) }

func flagDetail(rule *donav1.FlagRule) map[string]string {
	d := map[string]string{
		"flag":            rule.Flag,
		"rollout_percent": strconv.FormatUint(uint64(rule.RolloutPercent), 10),
		"rollout_variant": rule.RolloutVariant,
	}
	if rule.Disabled {
		d["disabled"] = "true"
	}
	if len(rule.Targeting) > 0 {
		// The values may be names of people: the log holds their hash.
		h := sha256.New()
		for _, t := range rule.Targeting {
			b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(t)
			fmt.Fprintf(h, "%d\n%s", len(b), b)
		}
		d["rules"] = strconv.Itoa(len(rule.Targeting))
		d["rules_sha256"] = fmt.Sprintf("%x", h.Sum(nil))
	}
	return d
}

// decodeFlag reads a rule and says of which version it is.
func decodeFlag(key string, rec store.Record) (rule *donav1.FlagRule, shown bool, err error) {
	var f statev1.FlagState
	if err := parse(key, rec.Value, &f); err != nil {
		return nil, false, err
	}
	f.Rule.Version = rec.Version
	return f.Rule, true, nil
}
