//go:build unix

package cli

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/external"
	"github.com/dodona-project/dodona/plugins/lock"
)

func openPluginDir(dir string) (*external.Dir, error) {
	d, err := external.Open(external.Options{Dir: dir})
	if err != nil {
		return nil, configuration("%v", err)
	}
	return d, nil
}

// pluginDirFailed is the failure of work on a directory.
func pluginDirFailed(err error) error {
	words := strings.ReplaceAll(err.Error(), "\n", "; ") // several problems, a line each
	var wrong *lock.Error
	if errors.As(err, &wrong) {
		return configuration("%s", words)
	}
	return failed("PLUGIN", "%s", words)
}

// installPlugin makes the directory when there is none.
func installPlugin(ctx context.Context, dir, file string, replace bool) (installedPlugin, error) {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return installedPlugin{}, configuration("make the plugin directory: %v", err)
	}
	d, err := openPluginDir(dir)
	if err != nil {
		return installedPlugin{}, err
	}
	defer func() { _ = d.Close() }()
	p, err := d.Install(ctx, plugins.RunAlone, file, replace)
	if err != nil {
		return installedPlugin{}, pluginDirFailed(err)
	}
	return installedPlugin(p), nil
}

func lockPlugins(ctx context.Context, dir string, requests []pinRequest) (string, []lockedPlugin, error) {
	d, err := openPluginDir(dir)
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = d.Close() }()
	pins := make([]external.PinRequest, len(requests))
	for i, r := range requests {
		pins[i] = external.PinRequest{Name: r.name, Version: r.version, Kind: r.kind}
	}
	done, err := d.Pin(ctx, plugins.RunAlone, pins...)
	if err != nil {
		return "", nil, pluginDirFailed(err)
	}
	locked := make([]lockedPlugin, len(done))
	for i, p := range done {
		locked[i] = lockedPlugin{Name: p.Name, Version: p.Version, Kind: p.Kind, Platforms: p.Platforms, Change: p.Change, Before: p.Before}
	}
	return d.LockPath(), locked, nil
}

func verifyPlugins(dir string) (string, []checkedPlugin, []string, error) {
	d, err := openPluginDir(dir)
	if err != nil {
		return "", nil, nil, err
	}
	found, unpinned, err := d.Verify()
	if err != nil {
		return "", nil, nil, pluginDirFailed(err)
	}
	checked := make([]checkedPlugin, len(found))
	for i, c := range found {
		checked[i] = checkedPlugin(c)
	}
	if unpinned == nil {
		unpinned = []string{}
	}
	return d.LockPath(), checked, unpinned, nil
}
