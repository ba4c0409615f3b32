package service

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/refusal"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/sdk/dona/ingress"
)

func ingressIndex(service string) string { return "svc/" + service + "/ingress" }
func ingressKey(id string) string        { return "ingress/" + id }

// ingressID names the one rule that a host and path prefix can have.
func ingressID(host, prefix string) string {
	sum := sha256.Sum256([]byte(host + "\x00" + prefix))
	return hex.EncodeToString(sum[:])
}

func checkIngress(req *donav1.SetIngressRequest) error {
	if err := refusal.Check("service", limits.Service(req.GetService())); err != nil {
		return err
	}
	if err := refusal.Check("host", grammar(req.GetHost(), ingress.CheckHost(req.GetHost()))); err != nil {
		return err
	}
	if req.GetPathPrefix() != "" { // empty is /
		if len(req.GetPathPrefix()) > limits.PathPrefixLen {
			return refusal.Field("path_prefix", "has %d bytes: allowed are at most %d", len(req.GetPathPrefix()), limits.PathPrefixLen)
		}
		if err := refusal.Check("path_prefix", grammar(req.GetPathPrefix(), ingress.CheckPrefix(req.GetPathPrefix()))); err != nil {
			return err
		}
	}
	if req.GetDelete() {
		return nil
	}
	return CheckRegions("allowed_regions", req.GetAllowedRegions())
}

// grammar says what text is before what is allowed.
func grammar(text string, err error) error {
	if err == nil {
		return nil
	}
	if text == "" {
		return errors.New("is empty: " + err.Error())
	}
	return errors.New("is " + limits.Quote(text) + ": " + err.Error())
}

// SetIngress sets or deletes the rule of a host and path prefix. The same rule
// again changes nothing and writes no entry. Refusals: Invalid; NotFound when
// there is no such service, or no such rule to delete; AlreadyExists when the
// host and prefix lead to another service; Exhausted at the limit.
func (p *Plane) SetIngress(ctx context.Context, actor string, req *donav1.SetIngressRequest) error {
	if err := checkIngress(req); err != nil {
		return err
	}
	rule := &donav1.Ingress{
		Service: req.GetService(), Host: req.GetHost(), PathPrefix: cmp.Or(req.GetPathPrefix(), "/"), AllowedRegions: req.GetAllowedRegions(),
	}
	id := ingressID(rule.Host, rule.PathPrefix)
	return p.store.Update(ctx, store.Hard, func(tx store.Tx) error {
		exists, err := p.Exists(tx, rule.Service)
		if err != nil {
			return err
		}
		if !exists {
			return refusal.New(refusal.NotFound, "there is no service %s: a flag, a policy, an artifact or an endpoint creates it", rule.Service)
		}
		var old statev1.IngressState
		version, err := load(tx, ingressKey(id), &old)
		if err != nil {
			return err
		}
		have := old.GetIngress()
		if req.GetDelete() {
			if version == 0 || have.GetService() != rule.Service {
				return refusal.New(refusal.NotFound, "service %s has no rule for host %s and path %s", rule.Service, limits.Quote(rule.Host), limits.Quote(rule.PathPrefix))
			}
			return p.deleteIngress(tx, actor, id, have)
		}
		if version != 0 && have.GetService() != rule.Service {
			return &refusal.Error{Kind: refusal.AlreadyExists, Field: "host",
				Text: "and path_prefix lead to another service already: dona ingress list shows which; delete that rule first"}
		}
		if version != 0 && proto.Equal(have, rule) {
			return nil
		}
		if version == 0 {
			if err := p.addIngress(tx, rule.Service, id); err != nil {
				return err
			}
		}
		if err := store.Save(tx, ingressKey(id), &statev1.IngressState{Ingress: rule}); err != nil {
			return err
		}
		return p.audit.Append(tx, rule.Service, audit.Entry{Kind: "ingress.set", Actor: actor, Detail: ingressDetail(rule)})
	})
}

func (p *Plane) addIngress(tx store.Tx, service, id string) error {
	have, err := tx.Scan(ingressIndex(service), 0, 0, 0)
	if err != nil {
		return err
	}
	if len(have) >= limits.IngressesPerService {
		return refusal.New(refusal.Exhausted, "service %s has %d ingress rules: allowed are at most %d", service, len(have), limits.IngressesPerService)
	}
	if err := p.Ensure(tx, service); err != nil {
		return err
	}
	return tx.IndexPut(ingressIndex(service), id, 0)
}

func (p *Plane) deleteIngress(tx store.Tx, actor, id string, rule *donav1.Ingress) error {
	if err := tx.Delete(ingressKey(id)); err != nil {
		return err
	}
	if err := tx.IndexDelete(ingressIndex(rule.GetService()), id); err != nil {
		return err
	}
	return p.audit.Append(tx, rule.GetService(), audit.Entry{Kind: "ingress.delete", Actor: actor, Detail: ingressDetail(rule)})
}

func ingressDetail(rule *donav1.Ingress) map[string]string {
	return map[string]string{
		"host": rule.GetHost(), "path_prefix": rule.GetPathPrefix(), "allowed_regions": audit.Value(rule.GetAllowedRegions()),
	}
}

// Ingresses lists the rules that lead to a service, by host and prefix, without
// those whose record is damaged.
func (p *Plane) Ingresses(tx store.ReadTx, service string) ([]*donav1.Ingress, error) {
	entries, err := tx.Scan(ingressIndex(service), 0, 0, 0)
	if err != nil {
		return nil, err
	}
	if err := store.Fetch(tx, entries, ingressKey); err != nil {
		return nil, err
	}
	var rules []*donav1.Ingress
	for _, e := range entries {
		var rule statev1.IngressState
		version, err := load(tx, ingressKey(e.Member), &rule)
		if errors.Is(err, store.ErrDamaged) {
			continue // Verify names it
		}
		if err != nil {
			return nil, err
		}
		if version != 0 && rule.GetIngress().GetService() == service {
			rules = append(rules, rule.GetIngress())
		}
	}
	slices.SortFunc(rules, func(a, b *donav1.Ingress) int {
		return cmp.Or(cmp.Compare(a.GetHost(), b.GetHost()), cmp.Compare(a.GetPathPrefix(), b.GetPathPrefix()))
	})
	return rules, nil
}
