package donaof_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	of "github.com/open-feature/go-sdk/openfeature"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
	"github.com/dodona-project/dodona/sdk/dona/bucket"
	"github.com/dodona-project/dodona/sdk/dona/donaof"
	"github.com/dodona-project/dodona/sdk/dona/internal/donatest"
)

func TestReasonsAndErrors(t *testing.T) {
	off := everyone("off", "v1")
	off.Disabled = true
	s, _ := service(t, donatest.Start(t), []string{"v1", "10"}, off,
		everyone("ten", "10"), everyone("all", "v1"), everyone("nobody-serves", "v9"),
		everyone("by-rule", "v1", &donav1.TargetingRule{Attribute: "plan", Values: []string{"gold"}, Variant: "10"}),
		&donav1.FlagRule{Flag: "half", RolloutPercent: 50, RolloutVariant: "v1"})
	p := donaof.New(s, donaof.Config{Values: map[string]map[string]any{"all": {"v2": 1}}})
	in, out := "", ""
	for i := 0; in == "" || out == ""; i++ {
		if unit := fmt.Sprint("user-", i); bucket.Bucket(unit, "half") < 50*bucket.PerPercent {
			in = unit
		} else {
			out = unit
		}
	}
	for _, c := range []struct {
		what, flag string
		context    of.FlattenedContext
		value      string
		reason     of.Reason
		code       string
	}{
		{"a rule", "by-rule", of.FlattenedContext{"plan": "gold"}, "10", of.TargetingMatchReason, ""},
		{"no rule", "by-rule", of.FlattenedContext{"plan": "tin"}, "v1", of.DefaultReason, ""},
		{"in the cohort", "half", of.FlattenedContext{of.TargetingKey: in}, "v1", of.SplitReason, ""},
		{"not in the cohort", "half", of.FlattenedContext{of.TargetingKey: out}, "mine", of.DefaultReason, ""},
		{"nobody", "half", nil, "mine", of.DefaultReason, ""},
		{"everybody", "ten", nil, "10", of.StaticReason, ""},
		{"switched off", "off", nil, "mine", of.DisabledReason, ""},
		{"no such flag", "none", nil, "mine", of.ErrorReason, "FLAG_NOT_FOUND"},
		{"a wrong unit", "ten", of.FlattenedContext{of.TargetingKey: "a\x00b"}, "mine", of.ErrorReason, "INVALID_CONTEXT"},
		{"no endpoint", "nobody-serves", nil, "mine", of.ErrorReason, "GENERAL"},
		{"no value", "all", nil, "mine", of.ErrorReason, "GENERAL"},
	} {
		d := p.StringEvaluation(t.Context(), c.flag, "mine", c.context)
		if code := string(d.ResolutionDetail().ErrorCode); d.Value != c.value || d.Reason != c.reason || code != c.code {
			t.Errorf("%s: %q %s %s (%v), want %q %s %s", c.what, d.Value, d.Reason, code, d.Error(), c.value, c.reason, c.code)
		}
	}
	if d := p.IntEvaluation(t.Context(), "ten", 1, nil); d.Value != 10 || d.Variant != "10" {
		t.Errorf("a number by its name: %+v", d)
	}
	if d := p.FloatEvaluation(t.Context(), "ten", 1, nil); d.Value != 10 {
		t.Errorf("a number by its name: %+v", d)
	}
	for what, code := range map[string]of.ErrorCode{
		"boolean": p.BooleanEvaluation(t.Context(), "ten", true, nil).ResolutionDetail().ErrorCode,
		"object":  p.ObjectEvaluation(t.Context(), "ten", nil, nil).ResolutionDetail().ErrorCode,
	} {
		if code != of.TypeMismatchCode {
			t.Errorf("10 as %s: %s", what, code)
		}
	}
}

// Evaluations for a unit are exposures, with what the flag gave; they are no calls.
func TestExposures(t *testing.T) {
	h := donatest.Start(t)
	s, _ := service(t, h, []string{"v1"}, everyone("all", "v1"), &donav1.FlagRule{Flag: "none", RolloutVariant: "v1"})
	p := donaof.New(s, donaof.Config{})
	for _, flag := range []string{"all", "none", "all"} {
		p.StringEvaluation(t.Context(), flag, "", of.FlattenedContext{of.TargetingKey: "user-1"})
		p.StringEvaluation(t.Context(), flag, "", nil) // nobody is exposed
	}
	got := map[string]uint64{}
	donatest.Until(t, "the host has counted the exposures", func() bool {
		clear(got)
		for _, e := range h.Status(t, "shop").GetExposures() {
			got[strings.Join([]string{e.Flag, e.Variant, e.Reason.String()}, " ")] += e.Count
		}
		return len(got) >= 2
	})
	if len(got) != 2 || got["all v1 REASON_SPLIT"] == 0 || got["none  REASON_DEFAULT"] == 0 {
		t.Errorf("exposures: %v", got)
	}
}

// The provider is not ready without data, and tells when flags change.
func TestEvents(t *testing.T) {
	away, err := dona.Dial(t.Context(), "127.0.0.1:1", dona.WithoutCache())
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	none := donaof.New(away.Service("shop"), donaof.Config{})
	defer none.Shutdown() // it waits on
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var notReady *of.ProviderInitError
	if err := none.InitWithContext(ctx, of.EvaluationContext{}); !errors.As(err, &notReady) || notReady.ErrorCode != of.ProviderNotReadyCode {
		t.Errorf("without a host: %v", err)
	}
	if d := none.StringEvaluation(t.Context(), "all", "mine", nil); d.Value != "mine" || d.ResolutionDetail().ErrorCode != of.ProviderNotReadyCode {
		t.Errorf("without a host: %+v", d)
	}

	h := donatest.Start(t)
	s, _ := service(t, h, []string{"v1"}, everyone("all", "v1"))
	p := donaof.New(s, donaof.Config{})
	if err := p.InitWithContext(t.Context(), of.EvaluationContext{}); err != nil {
		t.Fatal(err)
	}
	defer p.Shutdown()
	if _, err := h.Admin.SetFlag(t.Context(), &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Flag: "more", Service: "shop", RolloutVariant: "v1"}}); err != nil {
		t.Fatal(err)
	}
	if e := <-p.EventChannel(); e.EventType != of.ProviderConfigChange {
		t.Errorf("a new flag: %+v", e)
	}
	h.Stop()
	for e := range p.EventChannel() {
		if e.EventType == of.ProviderStale {
			break
		}
	}
	if d := p.StringEvaluation(t.Context(), "all", "mine", nil); d.Value != "v1" || d.Reason != "STALE" {
		t.Errorf("without the host: %+v", d)
	}
}

// A provider that nobody could reach a host for is ready when a host is there; what
// can never be ready says so.
func TestReadyLater(t *testing.T) {
	h := donatest.Start(t)
	service(t, h, []string{"v1"}, everyone("all", "v1"))
	var there atomic.Bool
	client, err := dona.Dial(t.Context(), h.Address, dona.WithoutCache(), dona.WithDialer(func(ctx context.Context, address string) (net.Conn, error) {
		if !there.Load() {
			return nil, errors.New("away")
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	defer of.Shutdown()
	if err := of.SetNamedProviderWithContextAndWait(ctx, "later", donaof.New(client.Service("shop"), donaof.Config{})); err == nil {
		t.Error("ready without a host")
	}
	flags := of.NewClient("later")
	donatest.Until(t, "the state is an error", func() bool { return flags.State() == of.ErrorState })
	there.Store(true)
	donatest.Until(t, "the provider is ready", func() bool { return flags.State() == of.ReadyState })
	if v, err := flags.StringValue(t.Context(), "all", "mine", of.EvaluationContext{}); err != nil || v != "v1" {
		t.Errorf("got %q, %v", v, err)
	}

	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	for what, name := range map[string]string{"a closed client": "other", "a name that cannot be": "no such name"} {
		p := donaof.New(client.Service(name), donaof.Config{})
		var fatal *of.ProviderInitError
		if err := p.InitWithContext(t.Context(), of.EvaluationContext{}); !errors.As(err, &fatal) || fatal.ErrorCode != of.ProviderFatalCode {
			t.Errorf("%s: %v", what, err)
		}
		if d := p.StringEvaluation(t.Context(), "all", "mine", nil); d.Value != "mine" || d.ResolutionDetail().ErrorCode != of.ProviderFatalCode {
			t.Errorf("%s: %+v", what, d)
		}
	}
}

// A provider that starts from disk while no host answers is stale, although
// OpenFeature calls whatever has started ready.
func TestStaleFromTheStart(t *testing.T) {
	h := donatest.Start(t)
	service(t, h, []string{"v1"}, everyone("all", "v1"))
	dir := t.TempDir()
	before, err := dona.Dial(t.Context(), h.Address, dona.WithCacheDir(dir))
	if err != nil {
		t.Fatal(err)
	}
	donatest.Until(t, "the client has the flag", func() bool {
		_, err := before.Service("shop").Flag(t.Context(), "all", dona.Request{})
		return err == nil
	})
	if err := before.Close(); err != nil { // writes what it has
		t.Fatal(err)
	}
	h.Stop()
	defer of.Shutdown()
	for range 5 { // whose word is heard first is chance
		client, err := dona.Dial(t.Context(), h.Address, dona.WithCacheDir(dir))
		if err != nil {
			t.Fatal(err)
		}
		if err := of.SetNamedProviderWithContextAndWait(t.Context(), "disk", donaof.New(client.Service("shop"), donaof.Config{})); err != nil {
			t.Fatal(err)
		}
		flags := of.NewClient("disk")
		d, err := flags.StringValueDetails(t.Context(), "all", "mine", of.EvaluationContext{})
		if err != nil || d.Value != "v1" || d.Reason != "STALE" {
			t.Errorf("from disk: %+v, %v", d, err)
		}
		donatest.Until(t, "the provider is stale", func() bool { return flags.State() == of.StaleState })
		if err := client.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
