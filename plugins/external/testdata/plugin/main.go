// Command plugin is a plugin of the tests: its path says its name, version and
// kind, so that one file, linked to many places, is many plugins.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
)

func main() {
	exe, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	name, version := filepath.Base(exe), filepath.Base(filepath.Dir(filepath.Dir(exe)))
	kind, _, _ := strings.Cut(name, "-")
	switch kind {
	case "strategy":
		plugin.Serve(plugin.Strategy(name, version, func(context.Context, *pluginv1.CompileRequest) (*pluginv1.CompileReply, error) {
			return &pluginv1.CompileReply{Plan: &donav1.Plan{Algorithm: donav1.Algorithm_ALGORITHM_ROUND_ROBIN}}, nil
		}))
	case "probe":
		plugin.Serve(plugin.Probe(name, version, func(context.Context, *pluginv1.CheckRequest) (*pluginv1.CheckReply, error) {
			return &pluginv1.CheckReply{Result: controlplanev1.HealthObservation_RESULT_SUCCESS, Detail: version}, nil
		}))
	}
	plugin.Serve(plugin.Analysis(name, version, func(context.Context, *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
		return &pluginv1.EvaluateReply{Verdict: donav1.Verdict_VERDICT_PASS, Detail: version}, nil
	}, plugin.OwnVerdict()))
}
