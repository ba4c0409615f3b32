package cli

import "context"

func installPlugin(context.Context, string, string, bool) (installedPlugin, error) {
	return installedPlugin{}, errNoHosts
}

func lockPlugins(context.Context, string, []pinRequest) (string, []lockedPlugin, error) {
	return "", nil, errNoHosts
}

func verifyPlugins(string) (string, []checkedPlugin, []string, error) {
	return "", nil, nil, errNoHosts
}
