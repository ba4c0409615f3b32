// Package tcp is the built-in probe "tcp": an endpoint is well when it takes a
// connection, and, where the configuration says so, answers a few bytes as it
// should. sdk/plugin serves [Probe].
package tcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"

	"github.com/dodona-project/dodona/builtin/probe/internal/reach"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
)

// Name is the plugin's name.
const Name = "tcp"

// Config is what a policy's probe_config may hold.
type Config struct {
	Send   string   `json:"send,omitempty" jsonschema:"maxLength=4096,description=is sent once connected"`
	Expect string   `json:"expect,omitempty" jsonschema:"maxLength=4096,description=has to be within the first 64 KiB of the answer"`
	Allow  []string `json:"allow,omitempty" jsonschema:"enum=loopback,enum=link-local,enum=metadata,description=addresses that may be checked although they are refused by default"`
}

// Probe implements the plugin.
type Probe struct {
	Resolver reach.Resolver // nil = the system's
}

// Configure refuses what the schema cannot see.
func (Probe) Configure(_ context.Context, c Config) error { return reach.CheckAllow(c.Allow) }

// Check checks by the configuration of the instance that is called.
func (p Probe) Check(ctx context.Context, req *pluginv1.CheckRequest) (*pluginv1.CheckReply, error) {
	config, _ := plugin.Config[Config](ctx)
	return p.CheckWith(ctx, config, req), nil
}

// CheckWith makes one check before ctx ends.
func (p Probe) CheckWith(ctx context.Context, c Config, req *pluginv1.CheckRequest) *pluginv1.CheckReply {
	conn, err := reach.Dialer{Policy: reach.Allowing(c.Allow), Resolver: p.Resolver}.Dial(ctx, req.GetEndpointAddress())
	if err != nil {
		return reach.Failed(ctx, err)
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if c.Send != "" {
		if _, err := conn.Write([]byte(c.Send)); err != nil {
			return reach.Failed(ctx, err)
		}
	}
	if c.Expect == "" {
		return reach.Good(0, "connected")
	}
	return expect(ctx, conn, []byte(c.Expect))
}

// expect reads until the answer has what is expected.
func expect(ctx context.Context, conn net.Conn, want []byte) *pluginv1.CheckReply {
	var got []byte
	buf := make([]byte, 4<<10)
	for len(got) < reach.MaxBytes {
		n, err := conn.Read(buf[:min(len(buf), reach.MaxBytes-len(got))])
		got = append(got, buf[:n]...)
		// What ends within the new bytes began at most so far before them.
		if bytes.Contains(got[max(len(got)-n-len(want)+1, 0):], want) {
			return reach.Good(0, "answered as expected")
		}
		if errors.Is(err, io.EOF) {
			return reach.Bad(controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL, "it ended after %d bytes without what is expected", len(got))
		}
		if err != nil {
			return reach.Failed(ctx, err)
		}
	}
	return reach.Bad(controlplanev1.ErrorClass_ERROR_CLASS_PROTOCOL, "what is expected is not within the first %d bytes", reach.MaxBytes)
}
