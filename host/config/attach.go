package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// attach reads KIND/NAME=SOCKET, more of them after commas.
func attach(c *Config, value string) error {
	c.Attach = nil
	if value == "" {
		return nil
	}
	all := map[string]string{}
	for one := range strings.SplitSeq(value, ",") {
		id, socket, _ := strings.Cut(one, "=")
		kind, name, _ := strings.Cut(id, "/")
		switch {
		case !slices.Contains(pluginKinds, kind) || name == "" || !filepath.IsAbs(socket):
			return fmt.Errorf("is %q: allowed is KIND/NAME=SOCKET as the plugin prints it, such as analysis/my-check=/tmp/…, with one of the kinds %s", short(one), strings.Join(pluginKinds, ", "))
		case all[id] != "":
			return fmt.Errorf("names %s twice: one socket is right", id)
		}
		all[id] = socket
	}
	c.Attach = all
	return nil
}
