package cli

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dodona-project/dodona/cmd/dona/internal/render"
	"github.com/dodona-project/dodona/host/limits"
	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
)

const (
	proxyPage    = 500 // proxies asked for at once
	defaultLimit = 1_000
	maxLimit     = 100_000
)

// whole reads a whole number of at most most.
func whole(text string, most uint32, into *uint32) bool {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || uint32(n) > most {
		return false
	}
	*into = uint32(n)
	return true
}

func (a *app) poolProxiesCommand() *cobra.Command {
	request := &controlplanev1.ListProxiesRequest{}
	var limit uint32
	cmd := &cobra.Command{
		Use:   "proxies",
		Short: "List proxies: state, owner, uses",
		Args:  positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit == 0 || limit > maxLimit {
				return usage("--limit is %d: allowed are 1 to %d", limit, maxLimit)
			}
			if err := limits.OptionalName(request.Upstream); err != nil {
				return usage("--upstream %v", err)
			}
			request.State = strings.ToUpper(request.State)
			if n, ok := controlplanev1.ProxyStatus_State_value["STATE_"+request.State]; request.State != "" && (!ok || n == 0) {
				return usage("--state is %s: allowed are new, available, suspect, unhealthy, extracted and expired", limits.Quote(request.State))
			}
			return a.withHost(cmd.Context(), func(c *connection) error {
				all, err := c.proxies(request, int(limit))
				if err != nil {
					return err
				}
				return a.answer(all, func() []string {
					if len(all.GetProxies()) == 0 {
						return []string{"no such proxies"}
					}
					lines := a.style().Proxies(all.GetProxies())
					if all.GetNextPageToken() != "" {
						lines = append(lines, fmt.Sprintf("there are more than %d: ask for more with --limit", limit))
					}
					return lines
				})
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&request.Upstream, "upstream", "", "only those of this upstream")
	fl.StringVar(&request.State, "state", "", "only those in this state: new, available, suspect, unhealthy, extracted, expired")
	fl.Uint32Var(&limit, "limit", defaultLimit, "at most this many")
	return cmd
}

// proxies reads pages until there are limit proxies, or no more.
func (c *connection) proxies(request *controlplanev1.ListProxiesRequest, limit int) (*controlplanev1.ListProxiesResponse, error) {
	all := &controlplanev1.ListProxiesResponse{}
	for {
		request.PageSize = uint32(min(proxyPage, limit-len(all.Proxies)))
		page, err := call(c, "proxies", c.pool.ListProxies, request)
		if err != nil {
			return nil, err
		}
		all.Proxies = append(all.Proxies, page.GetProxies()...)
		all.NextPageToken = page.GetNextPageToken()
		if all.NextPageToken == "" || len(all.Proxies) >= limit {
			return all, nil
		}
		if all.NextPageToken == request.PageToken {
			return nil, failed("INTERNAL", "proxies: the host gives the same page again and again")
		}
		request.PageToken = all.NextPageToken
	}
}

func (a *app) poolWorkersCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "workers",
		Short: "List workers: session, snapshot, proxies they own",
		Args:  positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withHost(cmd.Context(), func(c *connection) error {
				reply, err := call(c, "workers", c.pool.ListWorkers, &controlplanev1.ListWorkersRequest{})
				if err != nil {
					return err
				}
				return a.answer(reply, func() []string {
					if len(reply.GetWorkers()) == 0 {
						return []string{"there are no workers"}
					}
					return a.style().Workers(reply.GetWorkers(), a.now())
				})
			})
		},
	}
}

func (a *app) poolAvailabilityCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "availability",
		Short: "Show how many proxies of each upstream are in which state",
		Args:  positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withHost(cmd.Context(), func(c *connection) error {
				reply, err := call(c, "availability", c.pool.GetAvailability, &controlplanev1.GetAvailabilityRequest{})
				if err != nil {
					return err
				}
				return a.answer(reply, func() []string {
					if len(reply.GetUpstreams()) == 0 {
						return []string{"there are no upstreams"}
					}
					return a.style().Availability(reply.GetUpstreams())
				})
			})
		},
	}
}

func (a *app) poolDrainCommand() *cobra.Command {
	request := &controlplanev1.BeginDrainRequest{}
	cmd := &cobra.Command{
		Use:   "drain PROXY",
		Short: "Take a proxy from its worker, once nothing uses it",
		Long: `Take a proxy from its worker, once nothing uses it. The command does not wait for
that; asked again, it says how far it is.`,
		Args: positional("PROXY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.ProxyId = args[0]
			return a.withHost(cmd.Context(), func(c *connection) error {
				ticket, err := call(c, "drain of "+args[0], c.pool.BeginDrain, request)
				if err != nil {
					return err
				}
				return a.answer(ticket, func() []string { return []string{render.DrainLine(ticket)} })
			})
		},
	}
	cmd.Flags().StringVar(&request.Reason, "reason", "", "for the audit log")
	return cmd
}

// importWait is how long an import may take when --timeout says nothing else: as long
// as the host gives it.
const importWait = time.Minute

func (a *app) poolImportCommand() *cobra.Command {
	request := &controlplanev1.ImportProxiesRequest{}
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "import UPSTREAM LIST",
		Short: "Add the proxies of a list to an upstream, or make them last longer",
		Long: `Add the proxies of a list, a file, to an upstream, or make those that are there last
longer; "-" is stdin. A line is [scheme://]host:port, without credentials: those are named by
the upstream's secretRef. Lines that do not hold are told by number, and the others
are imported; the exit code is 1 when none was.`,
		Args: positional("UPSTREAM", "LIST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			raw, err := a.readInput(args[1])
			if err != nil {
				return configuration("%v", err)
			}
			request.Upstream, request.List = args[0], string(raw)
			if cmd.Flags().Changed("ttl") {
				if ttl < time.Second {
					return usage("--ttl is %s: allowed are 1s and more", ttl)
				}
				request.Ttl = durationpb.New(ttl)
			}
			return a.withHost(cmd.Context(), func(c *connection) error {
				if !cmd.Flags().Changed("timeout") {
					c.timeout = importWait
				}
				reply, err := call(c, "import into "+args[0], c.pool.ImportProxies, request)
				if err != nil {
					return err
				}
				if err := a.answer(reply, func() []string { return render.Import(reply) }); err != nil {
					return err
				}
				if n := len(reply.GetRejected()); n > 0 && reply.GetAdded()+reply.GetRefreshed() == 0 {
					kind := "INVALID_ARGUMENT"
					if a.json {
						kind = kindTold
					}
					return failed(kind, "no line of %d was imported", n)
				}
				return nil
			})
		},
	}
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "how long they last (default: the upstream's)")
	return cmd
}

// protocols are the words for them on the command line.
var protocols = map[string]controlplanev1.Proxy_Protocol{
	"": controlplanev1.Proxy_PROTOCOL_UNSPECIFIED, "http": controlplanev1.Proxy_PROTOCOL_HTTP,
	"https": controlplanev1.Proxy_PROTOCOL_HTTPS, "socks5": controlplanev1.Proxy_PROTOCOL_SOCKS5,
}

func (a *app) poolExtractCommand() *cobra.Command {
	request := &controlplanev1.ExtractRequest{}
	var labels []string
	var protocol string
	var remaining time.Duration
	cmd := &cobra.Command{
		Use:   "extract --upstream U|--routing R",
		Short: "Take proxies out of the pool for good, with their credentials",
		Long: `Take proxies out of the pool for good, with their credentials: nobody else is given
them, and there is no way back. --key makes it safe to ask again: the same key has
the same answer for a day. Without one the command makes one, and an error names it.

  dona pool extract --upstream acme --count 2 --min-remaining 10m`,
		Args: positional(),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if (request.Upstream == "") == (request.Routing == "") {
				return usage("dona pool extract wants --upstream or --routing, one of them")
			}
			p, ok := protocols[protocol]
			if !ok {
				return usage("--protocol is %s: allowed are http, https and socks5", limits.Quote(protocol))
			}
			request.Protocol = p
			if request.Count == 0 || request.Count > 100 {
				return usage("--count is %d: allowed are 1 to 100", request.Count)
			}
			if remaining < 0 {
				return usage("--min-remaining is %s: allowed are 0 and more", remaining)
			}
			if remaining > 0 {
				request.MinRemaining = durationpb.New(remaining)
			}
			if request.Labels, err = assignments("--label", labels); err != nil {
				return err
			}
			if request.IdempotencyKey == "" {
				request.IdempotencyKey = "dona-" + rand.Text()
			}
			return a.withHost(cmd.Context(), func(c *connection) error {
				reply, err := call(c, "extraction", c.pool.Extract, request)
				if err != nil {
					return askAgain(err, request.IdempotencyKey)
				}
				return a.answer(reply, func() []string { return a.style().Extraction(reply) })
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&request.Upstream, "upstream", "", "of this upstream")
	fl.StringVar(&request.Routing, "routing", "", "of the upstreams of this routing")
	fl.Uint32Var(&request.Count, "count", 1, "how many, 1 to 100")
	fl.StringVar(&protocol, "protocol", "", "only http, https or socks5")
	fl.DurationVar(&remaining, "min-remaining", 0, "only those that last at least this long")
	fl.StringArrayVar(&labels, "label", nil, "NAME=VALUE that they have; may be repeated")
	fl.StringVar(&request.IdempotencyKey, "key", "", "idempotency key: the same for the same extraction")
	return cmd
}

// askAgain names the key when nobody knows whether the extraction was made.
func askAgain(err error, key string) error {
	var f *failure
	if !errors.As(err, &f) {
		return fmt.Errorf("%w; ask again with --key %s", err, key)
	}
	switch f.kind {
	case "UNAVAILABLE", "DEADLINE_EXCEEDED", "AWAY", "UNKNOWN", "INTERNAL", "CANCELLED":
		f.msg += "; it may have been made: ask again with --key " + key
	}
	return f
}
