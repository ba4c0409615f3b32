package plugins

import (
	"context"
	"fmt"
	"regexp"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin/schema"
	"github.com/dodona-project/dodona/sdk/plugin/wire"
)

// description is what a plugin says of itself, checked.
type description struct {
	version     string
	summary     string
	concurrency int
	abilities   []string
	schema      *schema.Schema
}

var versionGrammar = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)

// describe asks the process what it is. Only its answer makes a start: a
// process that printed a handshake and serves nothing has not started.
func (g *generation) describe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, g.limits.Describe)
	defer cancel()
	reply, err := pluginv1.NewLifecycleClient(g.conn).Describe(ctx, &pluginv1.DescribeRequest{HostVersion: g.launch.version}, grpc.MaxCallRecvMsgSize(maxDescription))
	if err != nil {
		awaitDeadline(ctx, status.Code(err))
		if ctx.Err() != nil {
			return fmt.Errorf("call of Describe not answered within %v", g.limits.Describe)
		}
		return fmt.Errorf("call of Describe: %s", g.said(err))
	}
	if g.description, err = checkDescription(g.id, reply); err != nil {
		return permanent("%w", err)
	}
	if want := g.file.Version; want != "" && g.description.version != want {
		return permanent("plugin calls itself version %s: expected %s, the version that is pinned; put it into the folder of its own version, and pin that", g.description.version, want)
	}
	most := g.description.concurrency
	if c := g.config.MaxConcurrency; c > 0 {
		most = min(most, c)
	}
	g.slots = newSlots(most)
	return nil
}

// checkDescription refuses what a plugin says of itself when it is not the
// plugin that was asked for, or could not be used.
func checkDescription(id ID, r *pluginv1.DescribeReply) (*description, error) {
	switch {
	case r.GetName() != id.Name:
		return nil, fmt.Errorf("plugin calls itself %s: expected %q", quote(r.GetName()), id.Name)
	case r.GetKind() != wireKinds[id.Kind]:
		return nil, fmt.Errorf("plugin is of kind %s: expected %s", r.GetKind(), id.Kind)
	case len(r.GetVersion()) > 64 || !versionGrammar.MatchString(r.GetVersion()):
		return nil, fmt.Errorf("plugin has version %s: allowed is a semantic version of at most 64 bytes", quote(r.GetVersion()))
	case len(r.GetSummary()) > 256 || !utf8.ValidString(r.GetSummary()):
		return nil, fmt.Errorf("plugin has a summary of %d bytes: allowed are at most 256", len(r.GetSummary()))
	case len(r.GetCapabilities()) > 64:
		return nil, fmt.Errorf("plugin has %d capabilities: allowed are at most 64", len(r.GetCapabilities()))
	case r.GetMaxConcurrency() > wire.MaxConcurrency:
		return nil, fmt.Errorf("plugin asks for %d calls at once: allowed are at most %d", r.GetMaxConcurrency(), wire.MaxConcurrency)
	}
	d := &description{version: r.GetVersion(), summary: printable(r.GetSummary()), concurrency: int(r.GetMaxConcurrency()), abilities: r.GetCapabilities()}
	if d.concurrency == 0 {
		d.concurrency = wire.DefaultConcurrency
	}
	var err error
	d.schema, err = schema.Compile(r.GetConfigSchema())
	return d, err
}

func quote(s string) string { return fmt.Sprintf("%q", clip(s, 48)) }

// nameGrammar is that of a plugin's name.
var nameGrammar = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// CheckDescription says why no host takes a plugin that describes itself so, nil
// when one does.
func CheckDescription(r *pluginv1.DescribeReply) error {
	kind, known := KindOf(r.GetKind())
	switch {
	case !known:
		return fmt.Errorf("plugin is of kind %s: allowed are %s", r.GetKind(), KindWords)
	case !nameGrammar.MatchString(r.GetName()):
		return fmt.Errorf("plugin calls itself %s: allowed are 1 to 63 of a-z, 0-9 and -, beginning with a letter or digit", quote(r.GetName()))
	}
	_, err := checkDescription(ID{kind, r.GetName()}, r)
	return err
}
