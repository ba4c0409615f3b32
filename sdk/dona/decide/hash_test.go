package decide_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/decide"
)

// planned is a service of one variant with twenty endpoints.
func planned(t testing.TB, p *donav1.Plan) *decide.Program {
	t.Helper()
	s := &donav1.ConfigSnapshot{Service: "checkout", Version: 7, Plan: p}
	for i := range 20 {
		s.Endpoints = append(s.Endpoints, &donav1.Endpoint{Id: fmt.Sprint("e", i), Address: "10.0.0.1:80", Variant: "v1", Region: "eu", LbWeight: 100})
	}
	c, err := decide.Compile(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func hashBy(source donav1.HashPolicy_Source, name string) *donav1.Plan {
	return &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_CONSISTENT_HASH, Hash: &donav1.HashPolicy{Source: source, Name: name}}
}

// endpointsOf returns how many endpoints the same request comes to, and the first.
func endpointsOf(p *decide.Program, req decide.Request) (different int, first int32) {
	seen := map[int32]bool{}
	first = -1
	for range 100 {
		res := p.Decide(&req)
		if first < 0 {
			first = res.Endpoint
		}
		seen[res.Endpoint] = true
	}
	return len(seen), first
}

func TestHashKeys(t *testing.T) {
	unit, attribute := hashBy(donav1.HashPolicy_SOURCE_UNIT, ""), hashBy(donav1.HashPolicy_SOURCE_ATTRIBUTE, "cart")
	with := func(a ...decide.Attribute) decide.Request { return decide.Request{Unit: "user-1", Attributes: a} }
	for _, tc := range []struct {
		name   string
		plan   *donav1.Plan
		req    decide.Request
		sticky bool
	}{
		{"unit", unit, decide.Request{Unit: "user-1"}, true},
		{"no unit", unit, decide.Request{Attributes: []decide.Attribute{decide.String("cart", "5")}}, false},
		{"text", attribute, with(decide.String("cart", "5")), true},
		{"number", attribute, with(decide.Int("cart", 5)), true},
		{"float", attribute, with(decide.Float("cart", 5)), true},
		{"truth", attribute, with(decide.Bool("cart", true)), true},
		{"empty text", attribute, with(decide.String("cart", "")), false},
		{"another attribute", attribute, with(decide.String("basket", "5")), false},
		{"what only a proxy has", hashBy(donav1.HashPolicy_SOURCE_CLIENT_IP, ""), with(), false},
	} {
		n, _ := endpointsOf(planned(t, tc.plan), tc.req)
		if tc.sticky && n != 1 || !tc.sticky && n < 5 {
			t.Errorf("%s: the same request came to %d endpoints", tc.name, n)
		}
	}
	p := planned(t, attribute)
	_, text := endpointsOf(p, with(decide.String("cart", "5")))
	for _, a := range []decide.Attribute{decide.Int("cart", 5), decide.Float("cart", 5)} {
		if _, number := endpointsOf(p, with(a)); number != text {
			t.Error("a number and its text are different keys")
		}
	}
	seen := map[int32]bool{}
	for i := range 200 {
		_, at := endpointsOf(p, with(decide.Int("cart", int64(i))))
		seen[at] = true
	}
	if len(seen) != 20 {
		t.Errorf("200 carts came to %d of 20 endpoints", len(seen))
	}
}

func TestHashAllocatesNothing(t *testing.T) {
	p := planned(t, hashBy(donav1.HashPolicy_SOURCE_ATTRIBUTE, "cart"))
	for _, a := range []decide.Attribute{decide.String("cart", "5"), decide.Int("cart", -1<<63), decide.Float("cart", 1.0/3), decide.Bool("cart", false)} {
		if n := testing.AllocsPerRun(100, func() { p.Decide(&decide.Request{Attributes: []decide.Attribute{a}}) }); n != 0 {
			t.Errorf("%v: %v allocations", a, n)
		}
	}
}

// An explanation says what the plan hashes by, and when the request lacks it.
func TestExplainHash(t *testing.T) {
	for _, tc := range []struct {
		plan *donav1.Plan
		unit string
		want string
	}{
		{hashBy(donav1.HashPolicy_SOURCE_UNIT, ""), "user-1", "CONSISTENT_HASH by unit among 20 of 20"},
		{hashBy(donav1.HashPolicy_SOURCE_UNIT, ""), "", "CONSISTENT_HASH by unit, which the request has not: at random among 20 of 20"},
		{hashBy(donav1.HashPolicy_SOURCE_ATTRIBUTE, "cart"), "user-1", "CONSISTENT_HASH by attribute cart, which the request has not"},
		{&donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_RANDOM}, "user-1", "RANDOM among 20 of 20"},
	} {
		trace := planned(t, tc.plan).Explain(decide.Request{Unit: tc.unit})
		pick := trace.Stages[len(trace.Stages)-1]
		if pick.Name != "pick" || !strings.HasPrefix(pick.Detail[0], tc.want) {
			t.Errorf("%v: %v, want %q", tc.plan, pick, tc.want)
		}
	}
}

// What calls took is noted where the plan goes by it, and nowhere else.
func TestObserve(t *testing.T) {
	for _, tc := range []struct {
		algorithm donav1.Algorithm
		avoids    bool
	}{{donav1.Algorithm_ALGORITHM_PEAK_EWMA, true}, {donav1.Algorithm_ALGORITHM_LEAST_CONNECTIONS, false}} {
		synctest.Test(t, func(t *testing.T) {
			p := planned(t, &donav1.Plan{Algorithm: tc.algorithm, Choices: 32})
			for i := range int32(20) {
				p.Observe(i, 5*time.Millisecond, true)
			}
			p.Observe(3, time.Second, true)
			asked := 0
			for range 1000 {
				if p.Decide(&decide.Request{}).Endpoint == 3 {
					asked++
				}
			}
			if (asked == 0) != tc.avoids {
				t.Errorf("%s: the slow endpoint was picked %d times of 1000", tc.algorithm, asked)
			}
		})
	}
}
