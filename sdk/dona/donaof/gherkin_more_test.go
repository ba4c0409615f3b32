package donaof_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cucumber/godog"
	of "github.com/open-feature/go-sdk/openfeature"

	"github.com/dodona-project/dodona/sdk/dona"
	"github.com/dodona-project/dodona/sdk/dona/donaof"
	"github.com/dodona-project/dodona/sdk/dona/internal/donatest"
)

// providers makes those that scenarios ask for, in every state.
type providers struct {
	t       *testing.T
	stable  *donaof.Provider
	service *dona.Service
	config  donaof.Config
	away    *dona.Client // no host can be reached
	stale   *dona.Service
	host    *donatest.Host // of stale
}

// provide makes p the provider of the scenario's client.
func (s *scenario) provide(ctx context.Context, p *donaof.Provider) error {
	s.client = of.NewClient(s.domain)
	return of.SetNamedProviderWithContextAndWait(ctx, s.domain, p)
}

// in brings the scenario's client to a state.
func (s *scenario) in(ctx context.Context, state string) error {
	switch state {
	case "stable":
		return s.provide(ctx, s.stable)
	case "not ready":
		s.client = of.NewClient(s.domain)
		return of.SetNamedProviderWithContext(ctx, s.domain, donaof.New(s.away.Service("shop"), s.config))
	case "error":
		ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		if err := s.provide(ctx, donaof.New(s.away.Service("shop"), s.config)); err == nil {
			return fmt.Errorf("a provider without a host is ready")
		}
		donatest.Until(s.t, "the state is an error", func() bool { return s.client.State() == of.ErrorState })
	case "fatal":
		if err := s.provide(ctx, donaof.New(s.away.Service("no such name"), s.config)); err == nil {
			return fmt.Errorf("a provider of a service that cannot be is ready")
		}
	case "stale":
		if err := s.provide(ctx, donaof.New(s.providers.stale, s.config)); err != nil {
			return err
		}
		s.host.Stop()
		donatest.Until(s.t, "the provider is stale", func() bool { return s.client.State() == of.StaleState })
	default:
		return fmt.Errorf("no such state: %s", state)
	}
	return nil
}

// again evaluates what the scenario has named.
func (s *scenario) again(ctx context.Context) error {
	fallback := s.fallback
	text := fmt.Sprint(fallback)
	if s.kind == "object" {
		b, err := json.Marshal(fallback)
		if err != nil {
			return err
		}
		text = string(b)
	}
	return s.evaluate(ctx, s.kind, s.flag, text)
}

func unquote(text string) string { return strings.ReplaceAll(text, `\"`, `"`) }

// equal compares as JSON, which has one kind of number.
func equal(got, want any) error {
	g, err := json.Marshal(got)
	if err != nil {
		return err
	}
	w, err := json.Marshal(want)
	if err != nil {
		return err
	}
	var a, b any
	if err := json.Unmarshal(g, &a); err != nil {
		return err
	}
	if err := json.Unmarshal(w, &b); err != nil {
		return err
	}
	return same(a, b)
}

// more are the steps of the second version of evaluation, and of hooks.
func (s *scenario) more(c *godog.ScenarioContext) {
	ctx, cancel := context.WithCancel(context.Background()) // of what goes on beyond a step
	c.After(func(ctx context.Context, _ *godog.Scenario, err error) (context.Context, error) {
		cancel()
		return ctx, err
	})
	c.Step(`^an? (not ready|error|fatal|stale|stable) provider$`, func(state string) error { return s.in(ctx, state) })
	c.Step(`^the provider status should be "([^"]*)"$`, func(want string) error { return same(string(s.client.State()), want) })
	c.Step(`^an? (?i:(boolean|string|integer|float|object))-flag with key "([^"]*)" and a fallback value "(.*)"$`, func(kind, flag, fallback string) (err error) {
		s.kind, s.flag = strings.ToLower(kind), flag
		s.fallback, err = parse(s.kind, unquote(fallback))
		return err
	})
	c.Step(`^a context containing a key "([^"]*)", with type "([^"]*)" and with value "([^"]*)"$`, func(key, kind, text string) error {
		v, err := parse(strings.ToLower(kind), text)
		s.context = with(s.context, key, v)
		return err
	})
	c.Step(`^a context containing a key "([^"]*)" with null value$`, func(key string) { s.context = with(s.context, key, nil) })
	c.Step(`^the flag was evaluated with details$`, s.again)
	c.Step(`^the resolved details value should be "(.*)"$`, func(text string) error {
		want, err := parse(s.kind, unquote(text))
		if err != nil {
			return err
		}
		return equal(s.value, want)
	})
	c.Step(`^the reason should be "([^"]*)"$`, func(want string) error { return same(string(s.details.Reason), want) })
	c.Step(`^the error-code should be "([^"]*)"$`, func(want string) error { return same(string(s.details.ErrorCode), want) })
	c.Step(`^the flag key should be "([^"]*)"$`, func(want string) error { return same(s.details.FlagKey, want) })
	c.Step(`^the variant should be "([^"]*)"$`, func(want string) error { return same(s.details.Variant, want) })

	// Not waiting.
	c.Step(`^the flag was evaluated with details asynchronously$`, func() {
		s.async = make(chan struct{})
		go func() { defer close(s.async); _ = s.again(ctx) }()
	})
	c.Step(`^the evaluation should complete without blocking$`, func() error {
		select {
		case <-s.async:
			return nil
		case <-time.After(time.Minute):
			return fmt.Errorf("the evaluation hangs")
		}
	})

	// What must not change.
	mine := map[string]any{"email": "ballmer@none.com", "age": 42}
	c.Step(`^an evaluation context with modifiable data$`, func() { s.context = of.NewEvaluationContext("user-1", mine) })
	c.Step(`^the original evaluation context should remain unmodified$`, func() error {
		if err := same(s.context.TargetingKey(), "user-1"); err != nil {
			return err
		}
		if err := same(mine, map[string]any{"email": "ballmer@none.com", "age": 42}); err != nil {
			return err
		}
		return same(s.context.Attributes(), mine)
	})
	c.Step(`^the evaluation details should be immutable$`, func(ctx context.Context) error {
		was := s.details
		for key := range s.details.FlagMetadata {
			s.details.FlagMetadata[key] = "spoilt"
		}
		if err := s.again(ctx); err != nil {
			return err
		}
		if v, err := s.details.FlagMetadata.GetString("dona.config.version"); err != nil || v == "spoilt" {
			return fmt.Errorf("whoever changes metadata changes those of others: %q, %w", v, err)
		}
		return same(s.details.Variant, was.Variant)
	})

	// Hooks.
	c.Step(`^a client with added hook$`, func() { s.client.AddHooks(s.hook("")) })
	c.Step(`^evaluation options containing specific hooks$`, func() { s.options = append(s.options, of.WithHooks(s.hook("1"), s.hook("2"))) })
	c.Step(`^the flag was evaluated with details using the evaluation options$`, s.again)
	c.Step(`^the specified hooks should execute during evaluation$`, func() error {
		for _, h := range s.hooks {
			if err := same(h.called(), []string{"before", "after", "finally"}); err != nil {
				return err
			}
		}
		return same(len(s.hooks), 2)
	})
	c.Step(`^the hook order should be maintained$`, func() error {
		return same(*s.hooks[0].log, []string{"before 1", "before 2", "after 2", "after 1", "finally 2", "finally 1"})
	})
	c.Step(`^the "([^"]*)" hook should have been executed$`, func(stage string) error {
		if !slices.Contains(s.hooks[0].called(), stage) {
			return fmt.Errorf("hook %s was not called, but %v", stage, s.hooks[0].called())
		}
		return nil
	})
	c.Step(`^the "([^"]*)" hooks should be called with evaluation details$`, func(stages string, table *godog.Table) error {
		for stage := range strings.SplitSeq(stages, ", ") {
			d, there := s.hooks[0].details[stage]
			if !there {
				return fmt.Errorf("hook %s was not called, but %v", stage, s.hooks[0].called())
			}
			got := map[string]string{"flag_key": d.FlagKey, "value": fmt.Sprint(d.Value), "variant": d.Variant, "reason": string(d.Reason), "error_code": string(d.ErrorCode)}
			for _, row := range table.Rows[1:] {
				key, want := row.Cells[1].Value, strings.ReplaceAll(row.Cells[2].Value, "null", "")
				if err := same(got[key], want); err != nil {
					return fmt.Errorf("%s of hook %s: %w", key, stage, err)
				}
			}
		}
		return nil
	})
}

func with(c of.EvaluationContext, key string, v any) of.EvaluationContext {
	all := c.Attributes()
	all[key] = v
	return of.NewEvaluationContext(c.TargetingKey(), all)
}

// hook keeps how it was called.
type hook struct {
	name    string
	log     *[]string // of all hooks of the scenario
	details map[string]of.InterfaceEvaluationDetails
	adds    *of.EvaluationContext // to the context, before
}

func (s *scenario) hook(name string) *hook {
	h := &hook{name: name, log: new([]string), details: map[string]of.InterfaceEvaluationDetails{}}
	if len(s.hooks) > 0 {
		h.log = s.hooks[0].log
	}
	s.hooks = append(s.hooks, h)
	return h
}

func (h *hook) note(stage string) { *h.log = append(*h.log, strings.TrimSpace(stage+" "+h.name)) }

// called are the stages of this hook so far.
func (h *hook) called() []string {
	var stages []string
	for _, l := range *h.log {
		if stage, name, _ := strings.Cut(l, " "); name == h.name {
			stages = append(stages, stage)
		}
	}
	return stages
}

func (h *hook) Before(context.Context, of.HookContext, of.HookHints) (*of.EvaluationContext, error) {
	h.note("before")
	return h.adds, nil
}

func (h *hook) After(_ context.Context, _ of.HookContext, d of.InterfaceEvaluationDetails, _ of.HookHints) error {
	h.note("after")
	h.details["after"] = d
	return nil
}

func (h *hook) Error(context.Context, of.HookContext, error, of.HookHints) { h.note("error") }

func (h *hook) Finally(_ context.Context, _ of.HookContext, d of.InterfaceEvaluationDetails, _ of.HookHints) {
	h.note("finally")
	h.details["finally"] = d
}

// merging are the steps about contexts: what the levels add up to is what reaches
// the request of a decision.
func (s *scenario) merging(c *godog.ScenarioContext) {
	ctx := context.Background() // of the transaction
	c.After(func(ctx context.Context, _ *godog.Scenario, err error) (context.Context, error) {
		of.SetEvaluationContext(of.EvaluationContext{})
		return ctx, err
	})
	add := func(key, value, level string) error {
		more := of.NewTargetlessEvaluationContext(map[string]any{key: value})
		switch level {
		case "API":
			of.SetEvaluationContext(with(of.NewTargetlessEvaluationContext(s.atAPI), key, value))
			s.atAPI[key] = value
		case "Transaction":
			ctx = of.MergeTransactionContext(ctx, more)
		case "Client":
			s.client.SetEvaluationContext(with(s.client.EvaluationContext(), key, value))
		case "Invocation":
			s.context = with(s.context, key, value)
		case "Before Hooks":
			s.hook(key).adds = &more
			s.client.AddHooks(s.hooks[len(s.hooks)-1])
		default:
			return fmt.Errorf("no such level: %s", level)
		}
		return nil
	}
	c.Step(`^a stable provider with retrievable context is registered$`, func(ctx context.Context) error {
		s.atAPI = map[string]any{}
		config := s.config
		config.Request = func(c of.FlattenedContext) dona.Request { s.seen = c; return dona.Request{} }
		return s.provide(ctx, donaof.New(s.service, config))
	})
	c.Step(`^A context entry with key "([^"]*)" and value "([^"]*)" is added to the "([^"]*)" level$`, add)
	c.Step(`^A table with levels of increasing precedence$`, func(table *godog.Table) {
		for _, row := range table.Rows {
			s.level = append(s.level, row.Cells[0].Value)
		}
	})
	c.Step(`^Context entries for each level from API level down to the "([^"]*)" level, with key "([^"]*)" and value "([^"]*)"$`, func(last, key, _ string) error {
		for _, level := range s.level {
			if err := add(key, level, level); err != nil || level == last {
				return err
			}
		}
		return fmt.Errorf("no such level: %s", last)
	})
	c.Step(`^Some flag was evaluated$`, func() error { return s.evaluate(ctx, "boolean", "boolean-flag", "false") })
	c.Step(`^The merged context contains an entry with key "([^"]*)" and value "([^"]*)"$`, func(key, value string) error {
		return same(s.seen[key], any(value))
	})
}
