package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona"
)

// TestOperatorsProcess sets a flag for each rule of the golden table on a host in a
// process of its own, and has a client decide by what the host gives out.
func TestOperatorsProcess(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../sdk/dona/match/testdata/operators.json")
	if err != nil {
		t.Fatal(err)
	}
	var table []struct {
		Operator, Refused, Field string
		Values                   []string
		Cases                    []struct {
			Text, Int, Float *string
			Bool             *bool
			Want             string
		}
	}
	if err := json.Unmarshal(text, &table); err != nil {
		t.Fatal(err)
	}

	p := newProcess(t)
	p.start()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	admin := donav1.NewControlPlaneClient(p.dial())
	client, err := dona.Dial(ctx, p.grpc, dona.WithoutCache())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	if _, err := client.Register(ctx, dona.OwnEndpoint{Service: "web", ID: "v2-a", Address: "127.0.0.1:9", Variant: "v2"}); err != nil {
		t.Fatal(err)
	}
	key := func(i int) string { return fmt.Sprintf("rule-%03d", i) }
	set := map[donav1.TargetingRule_Operator]bool{}
	for i, g := range table {
		n, known := donav1.TargetingRule_Operator_value["OPERATOR_"+g.Operator]
		if !known {
			code, err := strconv.Atoi(g.Operator)
			if err != nil {
				t.Fatal(err)
			}
			n = int32(code)
		}
		rule := &donav1.TargetingRule{Attribute: "a", Operator: donav1.TargetingRule_Operator(n), Values: g.Values, Variant: "v2"}
		_, err := admin.SetFlag(ctx, &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Service: "web", Flag: key(i), Targeting: []*donav1.TargetingRule{rule}}})
		switch {
		case g.Refused == "" && err != nil:
			t.Errorf("%s %.60q: %v", g.Operator, g.Values, err)
		case g.Refused == "":
			set[rule.Operator] = true
		case status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "rule.targeting[0]."+g.Field) || !strings.Contains(err.Error(), g.Refused):
			t.Errorf("%s %.60q: got %v, want %s of %s", g.Operator, g.Values, err, g.Refused, g.Field)
		}
	}
	if len(set) != len(donav1.TargetingRule_Operator_name) {
		t.Errorf("flags were set with the operators %v alone", set)
	}

	// The last flag is there when all are.
	if _, err := admin.SetFlag(ctx, &donav1.SetFlagRequest{Rule: &donav1.FlagRule{Service: "web", Flag: "last", RolloutPercent: 100, RolloutVariant: "v2"}}); err != nil {
		t.Fatal(err)
	}
	web := client.Service("web")
	until(t, "the flags and the endpoint", func() bool {
		e, err := web.Flag(ctx, "last", dona.Request{})
		return err == nil && e.Variant == "v2"
	})
	decided := 0
	for i, g := range table {
		for _, c := range g.Cases {
			var a dona.Attribute
			switch {
			case c.Text != nil:
				a = dona.String("a", *c.Text)
			case c.Int != nil:
				n, err := strconv.ParseInt(*c.Int, 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				a = dona.Int("a", n)
			case c.Float != nil:
				x, err := strconv.ParseFloat(*c.Float, 64)
				if err != nil {
					t.Fatal(err)
				}
				a = dona.Float("a", x)
			case c.Bool != nil:
				a = dona.Bool("a", *c.Bool)
			}
			e, err := web.Flag(ctx, key(i), dona.Request{Attributes: []dona.Attribute{a}})
			want := donav1.Reason_REASON_DEFAULT
			if c.Want == "yes" {
				want = donav1.Reason_REASON_TARGETING_MATCH
			}
			if err != nil || e.Reason != want || (e.Variant == "v2") != (c.Want == "yes") {
				t.Errorf("%s %.60q of %+v: %+v, %v; want %v", g.Operator, g.Values, a, e, err, want)
			}
			decided++
		}
	}
	t.Logf("%d rules, %d decisions", len(table), decided)
}
