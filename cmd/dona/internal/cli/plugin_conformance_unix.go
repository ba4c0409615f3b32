//go:build unix

package cli

import (
	"context"
	"strings"

	"github.com/dodona-project/dodona/plugins/plugintest"
)

// judge runs the conformance suite.
func judge(ctx context.Context, c conformance) (*judgement, error) {
	target := plugintest.Command(c.file).With(plugintest.Config(c.config), plugintest.NoData(c.noData))
	for _, e := range c.env {
		name, value, _ := strings.Cut(e, "=")
		target = target.With(plugintest.Env(name, value))
	}
	if c.quick {
		target = target.With(plugintest.Quick())
	}
	report, err := plugintest.Test(ctx, target)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, usage("plugin test: %v", err)
	}
	found := &judgement{plugin: report.Plugin, failed: report.Failed(), lines: report.Lines(), object: report}
	if found.plugin == "" {
		found.plugin = c.file
	}
	if found.junit, err = report.JUnit(); err != nil {
		return nil, failed("OUTPUT", "the report cannot be written as XML: %v", err)
	}
	return found, nil
}
