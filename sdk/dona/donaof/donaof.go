// Package donaof is a provider for OpenFeature: applications that ask for flags
// through github.com/open-feature/go-sdk get what a service's flags give.
//
//	provider := donaof.New(client.Service("checkout"), donaof.Config{})
//	err := openfeature.SetProviderAndWait(provider)
//	flags := openfeature.NewClient("shop")
//	variant, err := flags.StringValue(ctx, "new-checkout", "v1", openfeature.NewEvaluationContext(userID, attributes))
//
// A flag of Dona gives a variant. As a string that is its name; as a boolean, an
// integer or a float it is what the name spells ("true", "off", "10", "0.5"); and
// Config.Values can give each variant any value, objects too. What a flag does not
// decide is the caller's default.
//
// The targeting key is the unit, and the other strings, numbers, booleans and times
// of the evaluation context are attributes. Each evaluation for a targeting key is
// recorded as an exposure.
//
//	STATIC           the flag gives its variant to everybody and has no rules
//	TARGETING_MATCH  a rule decided
//	SPLIT            the unit is in the cohort
//	DEFAULT          no rule decided, and the flag gives its variant to everybody
//	                 else; or it gives nothing: the caller's default
//	DISABLED         the flag is switched off: the caller's default
//	STALE            decided, and no host confirms the flags at the moment
//	ERROR            see the error code: FLAG_NOT_FOUND, TYPE_MISMATCH,
//	                 INVALID_CONTEXT (a unit that cannot be one), PROVIDER_NOT_READY,
//	                 PROVIDER_FATAL (the service's name cannot be one, or the client was
//	                 closed), PARSE_ERROR (a flag that this client cannot follow), or
//	                 GENERAL (its variant cannot serve, or Config.Values does not know it)
package donaof

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	of "github.com/open-feature/go-sdk/openfeature"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

// staleReason is a reason of OpenFeature that its Go SDK has no name for.
const staleReason of.Reason = "STALE"

// Config says what variants mean and who is asked for.
type Config struct {
	// Values are the values of flags' variants: flag, variant, value. Numbers may be
	// of any Go type that fits. A flag in it has to have each variant that it may
	// give; a flag that is not in it has the names of its variants as values.
	Values map[string]map[string]any
	// Request turns an evaluation context into a request; nil = as the package
	// comment says. It is for regions, and for attributes of other types.
	Request func(of.FlattenedContext) dona.Request
}

// Provider evaluates the flags of one service. It belongs to who closes the client;
// Shutdown ends its events only.
type Provider struct {
	service *dona.Service
	config  Config
	events  chan of.Event
	watch   watch
}

var (
	_ of.FeatureProvider          = (*Provider)(nil)
	_ of.ContextAwareStateHandler = (*Provider)(nil)
	_ of.EventHandler             = (*Provider)(nil)
)

// New makes a provider for a service.
func New(service *dona.Service, config Config) *Provider {
	if config.Request == nil {
		config.Request = request
	}
	return &Provider{service: service, config: config, events: make(chan of.Event, 16)}
}

// Metadata names the provider.
func (p *Provider) Metadata() of.Metadata { return of.Metadata{Name: "dona"} }

// Hooks returns none.
func (p *Provider) Hooks() []of.Hook { return nil }

// BooleanEvaluation reads true, on, false and off from a variant's name.
func (p *Provider) BooleanEvaluation(ctx context.Context, flag string, otherwise bool, c of.FlattenedContext) of.BoolResolutionDetail {
	return evaluate(ctx, p, flag, otherwise, c, boolean)
}

// StringEvaluation gives a variant's name.
func (p *Provider) StringEvaluation(ctx context.Context, flag string, otherwise string, c of.FlattenedContext) of.StringResolutionDetail {
	return evaluate(ctx, p, flag, otherwise, c, text)
}

// FloatEvaluation reads a number from a variant's name.
func (p *Provider) FloatEvaluation(ctx context.Context, flag string, otherwise float64, c of.FlattenedContext) of.FloatResolutionDetail {
	return evaluate(ctx, p, flag, otherwise, c, float)
}

// IntEvaluation reads a whole number from a variant's name.
func (p *Provider) IntEvaluation(ctx context.Context, flag string, otherwise int64, c of.FlattenedContext) of.IntResolutionDetail {
	return evaluate(ctx, p, flag, otherwise, c, integer)
}

// ObjectEvaluation gives what Config.Values has; a name alone is no object. The
// value is shared and must not be changed.
func (p *Provider) ObjectEvaluation(ctx context.Context, flag string, otherwise any, c of.FlattenedContext) of.InterfaceResolutionDetail {
	return evaluate(ctx, p, flag, otherwise, c, object)
}

func evaluate[T any](ctx context.Context, p *Provider, flag string, otherwise T, c of.FlattenedContext, read func(any, bool) (T, bool)) of.GenericResolutionDetail[T] {
	out := of.GenericResolutionDetail[T]{Value: otherwise}
	fail := func(err of.ResolutionError) of.GenericResolutionDetail[T] {
		out.Reason, out.ResolutionError = of.ErrorReason, err
		return out
	}
	e, err := p.service.Flag(ctx, flag, p.config.Request(c))
	switch {
	case errors.Is(err, dona.ErrNoFlag):
		return fail(of.NewFlagNotFoundResolutionError(err.Error()))
	case errors.Is(err, dona.ErrNoData):
		return fail(of.NewProviderNotReadyResolutionError(err.Error()))
	case ctx.Err() != nil:
		return fail(of.NewGeneralResolutionError(err.Error()))
	case errors.Is(err, dona.ErrUnit):
		return fail(of.NewInvalidContextResolutionError(err.Error()))
	case err != nil: // no other try helps
		return fail(of.NewProviderFatalResolutionError(err.Error()))
	}
	out.FlagMetadata = of.FlagMetadata{"dona.config.version": fmt.Sprint(e.ConfigVersion)}
	switch e.Reason {
	case donav1.Reason_REASON_ERROR:
		problem := fmt.Sprintf("flag %s of service %s: %s", flag, p.service.Name(), e.Problem)
		if e.Broken {
			return fail(of.NewParseErrorResolutionError(problem))
		}
		return fail(of.NewGeneralResolutionError(problem))
	case donav1.Reason_REASON_DISABLED:
		out.Reason = of.DisabledReason
		return out
	case donav1.Reason_REASON_TARGETING_MATCH:
		out.Reason = of.TargetingMatchReason
	case donav1.Reason_REASON_SPLIT:
		switch {
		case !e.Everyone:
			out.Reason = of.SplitReason
		case e.Ruled:
			out.Reason = of.DefaultReason
		default:
			out.Reason = of.StaticReason
		}
	default:
		out.Reason = of.DefaultReason
	}
	if e.Stale {
		out.Reason = staleReason
	}
	if e.Variant == "" {
		return out
	}
	var value any = e.Variant
	values, mapped := p.config.Values[flag]
	if mapped {
		var there bool
		if value, there = values[e.Variant]; !there {
			return fail(of.NewGeneralResolutionError(fmt.Sprintf("flag %s gives variant %s, for which Config.Values has no value: add it", flag, e.Variant)))
		}
	}
	got, ok := read(value, mapped)
	if !ok {
		return fail(of.NewTypeMismatchResolutionError(fmt.Sprintf("flag %s gives variant %s with the value %v, which is not of the type asked for: ask for another type, or give the variant a value in Config.Values", flag, e.Variant, value)))
	}
	out.Value, out.Variant = got, e.Variant
	return out
}

// request is the default of Config.Request.
func request(c of.FlattenedContext) dona.Request {
	var req dona.Request
	for name, v := range c {
		if name == of.TargetingKey {
			req.Unit, _ = v.(string)
			continue
		}
		if a, ok := attribute(name, v); ok {
			req.Attributes = append(req.Attributes, a)
		}
	}
	return req
}

func attribute(name string, v any) (dona.Attribute, bool) {
	switch v := v.(type) {
	case string:
		return dona.String(name, v), true
	case bool:
		return dona.Bool(name, v), true
	case time.Time:
		return dona.String(name, v.Format(time.RFC3339Nano)), true
	}
	if i, ok := integer(v, true); ok && !isFloat(v) {
		return dona.Int(name, i), true
	}
	if f, ok := float(v, true); ok {
		return dona.Float(name, f), true
	}
	return dona.Attribute{}, false
}

func boolean(v any, mapped bool) (bool, bool) {
	if b, ok := v.(bool); ok || mapped {
		return b, ok
	}
	switch name, _ := v.(string); strings.ToLower(name) {
	case "true", "on":
		return true, true
	case "false", "off":
		return false, true
	}
	return false, false
}
