// Command plugin is a plugin of the tests: the last line of its file says its name and
// version, so that one program, written to many places, is many plugins.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
)

func main() {
	name, version, deed, err := stamp()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if path, ok := strings.CutPrefix(deed, "mark="); ok { // it ran, whatever else
		if err := os.WriteFile(path, []byte(version), 0o600); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
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
	plugin.Serve(plugin.Analysis(name, version, func(_ context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
		detail := version
		if do := req.GetQuery().GetQuery(); do != "" {
			detail = try(do)
		}
		return &pluginv1.EvaluateReply{Verdict: donav1.Verdict_VERDICT_PASS, Detail: detail}, nil
	}, plugin.OwnVerdict(), plugin.MaxConcurrency(128)))
}

// stamp reads the last line of this program as it runs: "DONA <name> <version> [<deed>]".
func stamp() (name, version, deed string, err error) {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", "", "", err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return "", "", "", err
	}
	tail := make([]byte, 512)
	n, _ := f.ReadAt(tail, max(0, info.Size()-int64(len(tail))))
	_, last, ok := strings.Cut(string(tail[:n]), "\nDONA ")
	words := strings.Fields(last)
	if !ok || len(words) < 2 {
		return "", "", "", fmt.Errorf("this program has no stamp: it is for tests")
	}
	return words[0], words[1], strings.Join(words[2:], " "), nil
}
