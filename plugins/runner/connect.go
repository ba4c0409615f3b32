package runner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/dodona-project/dodona/sdk/plugin/wire"
)

// Environment is the whole environment of a plugin, but for what go-plugin adds, in
// order: nothing else of this process's own is passed on. private is the directory that
// it may write to, level the least that it is to log; own is added, and wins.
func Environment(private, level string, own map[string]string) []string {
	get := func(k, fallback string) string {
		if v := os.Getenv(k); v != "" {
			return v
		}
		return fallback
	}
	env := map[string]string{
		"PATH":           get("PATH", "/usr/local/bin:/usr/bin:/bin"),
		"HOME":           private,
		"TMPDIR":         private,
		"LANG":           get("LANG", "C.UTF-8"),
		"TZ":             get("TZ", "UTC"),
		"GOMEMLIMIT":     "512MiB",
		"GOMAXPROCS":     fmt.Sprint(min(runtime.NumCPU(), 4)),
		wire.LogLevelEnv: level,
	}
	maps.Copy(env, own)
	list := make([]string, 0, len(env))
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return list
}

// Connection is what go-plugin is given as the one plugin of a set: it tells it that
// the connection is all we want of it.
type Connection struct {
	goplugin.NetRPCUnsupportedPlugin
}

// GRPCServer implements goplugin.GRPCPlugin.
func (Connection) GRPCServer(*goplugin.GRPCBroker, *grpc.Server) error {
	return errors.New("this side calls")
}

// GRPCClient implements goplugin.GRPCPlugin.
func (Connection) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return conn, nil
}

// Dial starts what client is for, whose set has a Connection as [wire.PluginSet], and
// returns the connection to it.
func Dial(client *goplugin.Client) (*grpc.ClientConn, error) {
	if _, err := client.Start(); err != nil {
		return nil, err
	}
	protocol, err := client.Client()
	if err != nil {
		return nil, err
	}
	raw, err := protocol.Dispense(wire.PluginSet)
	if err != nil {
		_ = protocol.Close()
		return nil, err
	}
	return raw.(*grpc.ClientConn), nil
}
