package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dodona-project/dodona/cmd/dona/internal/agent"
	"github.com/dodona-project/dodona/cmd/dona/internal/render"
	"github.com/dodona-project/dodona/host/limits"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/dona/identity"
	"github.com/dodona-project/dodona/sdk/dona/svidfile"
)

const defaultBootstrap = "127.0.0.1:7601"

func (a *app) svidCommand() *cobra.Command {
	return group("svid", "Issue identities: tokens, SVIDs, the authority, the Workload API",
		group("token", "Make and revoke tokens, each good for one identity", a.tokenCreateCommand(), a.tokenRevokeCommand()),
		a.svidIssueCommand(), a.svidRenewCommand(), a.svidAgentCommand(),
		group("ca", "Look at the authority that signs, and put another in its place", a.caStatusCommand(),
			a.caStepCommand(donav1.RolloverCARequest_STEP_PREPARE, "prepare", "Make another authority and put it into bundles; it signs nothing yet",
				`Make another authority and put it into bundles; it signs nothing yet. Workloads learn of
it when they renew their SVIDs: wait as long as an SVID lives before it is activated,
and have operators renew theirs with "dona svid renew".
Hosts that share a store need its key, too: copy ca/<key id>.pem from the data
directory of the host that made it into theirs.`),
			a.caStepCommand(donav1.RolloverCARequest_STEP_ACTIVATE, "activate", "Have the prepared authority sign from now on",
				`Have the prepared authority sign from now on. What the one before has signed stays valid
until it expires, and that one stays in bundles until it is retired.`),
			a.caStepCommand(donav1.RolloverCARequest_STEP_DROP, "drop", "Take the prepared authority out of bundles again; it has signed nothing",
				`Take the prepared authority out of bundles again, such as one whose key is lost. It has
signed nothing, so that nobody misses it. Its key is then removed.`),
			a.caStepCommand(donav1.RolloverCARequest_STEP_RETIRE, "retire", "Take the old authority out of bundles, once all that it signed has expired",
				`Take the old authority out of bundles. It is refused until the last SVID that it signed
has expired; "dona svid ca status" says when. Its key is then removed.`)))
}

// identityFlags name an identity.
type identityFlags struct{ service, path string }

func (i *identityFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&i.service, "service", "", "the service whose identity it is")
	cmd.Flags().StringVar(&i.path, "path", "", "another identity: ENV/worker/ID, ENV/checker/ID, admin/NAME or host/ID")
}

func (i *identityFlags) check() error {
	if i.service != "" && i.path != "" {
		return usage("--service and --path are two identities: name one")
	}
	if i.service != "" {
		if err := limits.Service(i.service); err != nil {
			return usage("--service %v", err)
		}
	}
	return nil
}

func (a *app) tokenCreateCommand() *cobra.Command {
	var who identityFlags
	var ttl time.Duration
	var uses uint32
	cmd := &cobra.Command{
		Use:   "create (--service SERVICE | --path PATH) [--ttl D] [--uses N]",
		Short: "Make a token; it is shown once",
		Long: `Make a token that grants one identity. It is shown once: the host keeps a hash of it.

  dona svid token create --service checkout --ttl 10m
  dona svid token create --path admin/alice`,
		Args: positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := who.check(); err != nil {
				return err
			}
			if who.service == "" && who.path == "" {
				return usage("a token grants one identity: name it with --service or --path")
			}
			if ttl < time.Second || ttl > limits.TokenTTL {
				return usage("--ttl is %s: allowed are 1s to %s", ttl, limits.TokenTTL)
			}
			if uses < 1 || uses > limits.TokenUses {
				return usage("--uses is %d: allowed are 1 to %d", uses, limits.TokenUses)
			}
			return a.withHost(cmd.Context(), func(c *connection) error {
				t, err := call(c, "token", c.admin.CreateToken, &donav1.CreateTokenRequest{
					Service: who.service, Path: who.path, TtlSeconds: uint32(ttl / time.Second), Uses: uses,
				})
				if err != nil {
					return err
				}
				return a.answer(t, func() []string {
					return []string{"token    " + render.Clean(t.GetToken()), "id       " + render.Clean(t.GetTokenId()),
						"expires  " + time.Unix(t.GetExpiresUnix(), 0).UTC().Format(time.RFC3339)}
				})
			})
		},
	}
	who.add(cmd)
	cmd.Flags().DurationVar(&ttl, "ttl", time.Hour, "how long it may be used")
	cmd.Flags().Uint32Var(&uses, "uses", 1, "how often it may be used")
	return cmd
}

func (a *app) tokenRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke ID",
		Short: "Revoke a token; what was issued for it stays valid until it expires",
		Args:  positional("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withHost(cmd.Context(), func(c *connection) error {
				reply, err := call(c, "revocation", c.admin.RevokeToken, &donav1.RevokeTokenRequest{TokenId: args[0]})
				if err != nil {
					return err
				}
				return a.answer(reply, func() []string { return []string{"revoked " + render.Clean(args[0])} })
			})
		},
	}
}

// tokenFlags say where a token comes from and where it is taken.
type tokenFlags struct{ text, file, bootstrap string }

func (f *tokenFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.text, "token", "", "the token (default $DONA_TOKEN); others on this machine may see it there")
	fl.StringVar(&f.file, "token-file", "", "file with the token; read each time that one is needed")
	fl.StringVar(&f.bootstrap, "bootstrap", "", "address of the bootstrap listener of a host (default $DONA_BOOTSTRAP, else "+defaultBootstrap+")")
}

// source returns what gives a token, nil when there is none, and where it is taken.
func (f *tokenFlags) source(a *app) (token func(context.Context) (string, error), bootstrap string, err error) {
	bootstrap = cmp.Or(f.bootstrap, a.getenv("DONA_BOOTSTRAP"), defaultBootstrap)
	if err := limits.Address(bootstrap); err != nil {
		if f.bootstrap == "" {
			return nil, "", configuration("DONA_BOOTSTRAP %v", err)
		}
		return nil, "", usage("--bootstrap %v", err)
	}
	text := cmp.Or(f.text, a.getenv("DONA_TOKEN"))
	switch {
	case f.file != "" && f.text != "":
		return nil, "", usage("--token and --token-file are two tokens: give one")
	case f.file != "":
		return func(context.Context) (string, error) {
			raw, err := os.ReadFile(f.file)
			if err != nil {
				return "", configuration("--token-file %v", err)
			}
			return strings.TrimSpace(string(raw)), nil
		}, bootstrap, nil
	case text != "":
		return func(context.Context) (string, error) { return text, nil }, bootstrap, nil
	}
	return nil, bootstrap, nil
}

func (a *app) svidIssueCommand() *cobra.Command {
	var who identityFlags
	var from tokenFlags
	var out string
	cmd := &cobra.Command{
		Use:   "issue --token TOKEN --out DIR",
		Short: "Get an SVID for a token, into a folder",
		Long: `Get an SVID for one use of a token. The key is made here and never leaves; cert.pem,
key.pem and bundle.pem are written into the folder, for their owner only.

  dona svid issue --token "$TOKEN" --out ./checkout-identity`,
		Args: positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := who.check(); err != nil {
				return err
			}
			token, bootstrap, err := from.source(a)
			if err != nil {
				return err
			}
			if token == nil {
				return usage("there is no token: give one with --token, --token-file or DONA_TOKEN; \"dona svid token create\" makes it")
			}
			if out == "" {
				return usage("--out is empty: name the folder for the files")
			}
			text, err := token(cmd.Context())
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
			defer cancel()
			s, err := identity.Bootstrap(ctx, bootstrap, identity.Request{Token: text, Service: who.service, Path: who.path})
			if err != nil {
				return noSVID(bootstrap, err)
			}
			if err := identity.Save(out, s); err != nil {
				return failed("OUTPUT", "the SVID cannot be written: %v", err)
			}
			return a.tellSVID(s, "dir", out)
		},
	}
	who.add(cmd)
	from.add(cmd)
	cmd.Flags().StringVar(&out, "out", "", "folder for the files; made with mode 0700")
	return cmd
}

func (a *app) svidRenewCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "renew --identity DIR",
		Short: "Get the next SVID for the one in a folder, and the newest bundle, into it",
		Long: `Get the next SVID for the one in the folder that --identity or DONA_IDENTITY names, and
the newest bundle, into that folder. It needs no token as long as the one there is
valid. Before an authority is activated, every operator does this once.`,
		Args: positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir := cmp.Or(a.identity, a.getenv("DONA_IDENTITY"))
			if dir == "" {
				return usage("there is no identity to renew: name its folder with --identity or DONA_IDENTITY")
			}
			hosts, err := a.hostAddress()
			if err != nil {
				return err
			}
			files, err := svidfile.Open(dir, svidfile.Options{})
			if err != nil {
				return configuration("the identity: %v", err)
			}
			defer func() { _ = files.Close() }()
			ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
			defer cancel()
			s, err := identity.Renew(ctx, hosts, files)
			if err != nil {
				return noSVID(hosts, err)
			}
			if err := identity.Save(dir, s); err != nil {
				return failed("OUTPUT", "the SVID cannot be written: %v", err)
			}
			return a.tellSVID(s, "dir", dir)
		},
	}
}

// tellSVID says what was got and where it is.
func (a *app) tellSVID(s *identity.SVID, where, path string) error {
	if a.json {
		return a.object(map[string]any{"spiffe_id": s.ID().String(), where: path, "expires_unix": fmt.Sprint(s.Expires().Unix())})
	}
	return a.lines(fmt.Sprintf("%s, valid until %s, in %s", s.ID(), s.Expires().UTC().Format(time.RFC3339), render.Clean(path)))
}

// noSVID turns the answer of who was to issue an SVID into a failure.
func noSVID(issuer string, err error) error {
	var own *failure
	if errors.As(err, &own) {
		return own
	}
	var answered interface{ GRPCStatus() *status.Status } // the host's own words, without what was put before them
	if !errors.As(err, &answered) {
		return failed("FAILED", "no SVID: %v", err)
	}
	st := answered.GRPCStatus()
	switch {
	case st.Code() == codes.Unavailable:
		return failed("AWAY", "no SVID: nobody issues any at %s; a token is taken by the bootstrap listener that --bootstrap or DONA_BOOTSTRAP names, an SVID is renewed by --host (%s)", issuer, st.Message())
	case st.Code() == codes.DeadlineExceeded:
		return failed("DEADLINE_EXCEEDED", "no SVID: no answer from %s in time", issuer)
	case st.Code() == codes.InvalidArgument:
		return &failure{code: ExitUsage, kind: "INVALID_ARGUMENT", msg: "no SVID: " + st.Message()}
	}
	return failed(codeName(st.Code()), "no SVID: %s", st.Message())
}

func (a *app) svidAgentCommand() *cobra.Command {
	var who identityFlags
	var from tokenFlags
	var socket, out string
	cmd := &cobra.Command{
		Use:   "agent --socket PATH --token TOKEN [--out DIR]",
		Short: "Keep an SVID fresh and serve it over the SPIFFE Workload API",
		Long: `Keep an SVID fresh and serve it to the programs of this user over the SPIFFE Workload
API, on a unix socket for its owner only, until interrupted. Any SPIFFE client takes it:

  dona svid agent --socket /run/user/1000/dona/agent.sock --token-file token &
  export SPIFFE_ENDPOINT_SOCKET=unix:///run/user/1000/dona/agent.sock

It is renewed at the hosts that --host names. With --out it is also kept in a folder,
where the next start finds it.`,
		Args: positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := who.check(); err != nil {
				return err
			}
			hosts, err := a.hostAddress()
			if err != nil {
				return err
			}
			token, bootstrap, err := from.source(a)
			if err != nil {
				return err
			}
			switch {
			case socket == "":
				return usage("--socket is empty: name the path of the socket")
			case token == nil && out == "":
				return usage("there is no token: give one with --token, --token-file or DONA_TOKEN; \"dona svid token create\" makes it")
			}
			return a.serveSVID(cmd.Context(), socket, identity.Config{
				Hosts: hosts, Bootstrap: bootstrap, Service: who.service, Path: who.path, Token: token, Dir: out,
				Log: slog.New(slog.NewTextHandler(a.errOut, nil)),
			})
		},
	}
	who.add(cmd)
	from.add(cmd)
	cmd.Flags().StringVar(&socket, "socket", "", "path of the socket; its folder is made with mode 0700")
	cmd.Flags().StringVar(&out, "out", "", "folder to keep the SVID in")
	return cmd
}

func (a *app) serveSVID(ctx context.Context, socket string, config identity.Config) error {
	listener, err := agent.Listen(socket)
	if err != nil {
		return &failure{code: ExitRefused, kind: "REFUSED", msg: fmt.Sprintf("the socket %s cannot be opened: %v", render.Clean(socket), err)}
	}
	defer func() { _ = listener.Close() }()
	first, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	svid, err := identity.NewRotating(first, config)
	if err != nil {
		return noSVID(config.Bootstrap, err)
	}
	defer svid.Close()
	s, _ := svid.Current()
	if err := a.tellSVID(s, "socket", socket); err != nil {
		return err
	}
	if err := agent.Serve(ctx, listener, svid); err != nil {
		return failed("FAILED", "the Workload API: %v", err)
	}
	return ctx.Err()
}

func (a *app) caStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show which authority signs, which is prepared, and which is old",
		Args:  positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withHost(cmd.Context(), func(c *connection) error {
				h, err := call(c, "authorities", c.admin.GetHost, &donav1.GetHostRequest{})
				if err != nil {
					return err
				}
				if h.GetCa() == nil {
					return failed("FAILED_PRECONDITION", "the host at %s issues no identities: start it with --bootstrap-listen, such as %s", c.target, defaultBootstrap)
				}
				return a.answer(h.GetCa(), func() []string { return caLines(h.GetCa()) })
			})
		},
	}
}

func (a *app) caStepCommand(step donav1.RolloverCARequest_Step, name, short, long string) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: short, Long: long, Args: positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withHost(cmd.Context(), func(c *connection) error {
				s, err := call(c, name+" of an authority", c.admin.RolloverCA, &donav1.RolloverCARequest{Step: step})
				if err != nil {
					return err
				}
				return a.answer(s, func() []string { return caLines(s) })
			})
		},
	}
}

// caLines draws how the authorities stand.
func caLines(s *donav1.CAStatus) []string {
	old := cmp.Or(render.Clean(s.GetOldKeyId()), "-")
	if s.GetOldKeyId() != "" {
		old += ", its last SVID expires " + time.Unix(s.GetOldLastLeafExpiresUnix(), 0).UTC().Format(time.RFC3339)
	}
	return []string{
		"active    " + cmp.Or(render.Clean(s.GetActiveKeyId()), "-"),
		"prepared  " + cmp.Or(render.Clean(s.GetPreparedKeyId()), "-"),
		"old       " + old,
	}
}
