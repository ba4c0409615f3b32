package badplugins

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"

	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// The plugins of this file serve, and are wrong in what they say of themselves.

func describing(s self, change func(*pluginv1.DescribeReply)) {
	(&rawServer{self: s, describe: change}).serve()
}

func describeSilent(s self) { describing(s, func(*pluginv1.DescribeReply) { forever() }) }
func wrongName(s self)      { describing(s, func(d *pluginv1.DescribeReply) { d.Name = "somebody-else" }) }
func wrongKind(s self) {
	describing(s, func(d *pluginv1.DescribeReply) { d.Kind = pluginv1.Kind_KIND_PROBE })
}
func wrongVersion(s self) { describing(s, func(d *pluginv1.DescribeReply) { d.Version = "latest" }) }

// manyAbilities says a million words of which 64 are allowed.
func manyAbilities(s self) {
	describing(s, func(d *pluginv1.DescribeReply) { d.Capabilities = make([]string, 1_000_000) })
}

// describeLarge has a summary of 64 MiB.
func describeLarge(s self) {
	describing(s, func(d *pluginv1.DescribeReply) { d.Summary = strings.Repeat("s", 64<<20) })
}

// deepSchema nests its schema as deep as its size allows.
func deepSchema(s self) {
	const deep = 9_000
	describing(s, func(d *pluginv1.DescribeReply) {
		d.ConfigSchema = strings.Repeat(`{"items":`, deep) + "{}" + strings.Repeat("}", deep)
	})
}

func healthSilent(s self) {
	(&rawServer{self: s, health: func(stream grpc.ServerStreamingServer[pluginv1.Health]) error {
		<-stream.Context().Done()
		return nil
	}}).serve()
}

// healthFlood changes its mind as often as the connection takes it.
func healthFlood(s self) {
	(&rawServer{self: s, health: func(stream grpc.ServerStreamingServer[pluginv1.Health]) error {
		for i := 0; ; i++ {
			h := &pluginv1.Health{State: pluginv1.Health_STATE_HEALTHY}
			if i%2 == 1 {
				h = &pluginv1.Health{State: pluginv1.Health_STATE_DEGRADED, Reason: fmt.Sprint("change ", i)}
			}
			if err := stream.Send(h); err != nil {
				return err
			}
		}
	}}).serve()
}

// manyViolations refuses every configuration for a million reasons.
func manyViolations(s self) {
	(&rawServer{self: s, configure: func(context.Context, *pluginv1.ConfigureRequest) (*pluginv1.ConfigureReply, error) {
		r := &pluginv1.ConfigureReply{Violations: make([]*pluginv1.Violation, 1_000_000)}
		for i := range r.Violations {
			r.Violations[i] = &pluginv1.Violation{Message: "no"}
		}
		return r, nil
	}}).serve()
}

func configureHangs(s self) {
	(&rawServer{self: s, configure: func(context.Context, *pluginv1.ConfigureRequest) (*pluginv1.ConfigureReply, error) {
		forever()
		return nil, nil
	}}).serve()
}

// unimplemented speaks gRPC and knows none of our services.
func unimplemented(s self) { (&rawServer{self: s, without: true}).serve() }
