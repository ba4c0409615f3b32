package cli

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// patience is how long a watch waits for a host that went away to come back.
const patience = 30 * time.Second

func (a *app) statusCommand() *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:   "status [SERVICE]",
		Short: "Show a service: endpoints, weights, rollout, flags; without SERVICE all of them",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				if watch {
					return usage("dona status --watch wants a SERVICE")
				}
				return nil
			}
			return positional("SERVICE")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withHost(cmd.Context(), func(c *connection) error {
				switch {
				case len(args) == 0:
					return a.overview(c)
				case watch:
					return a.watchStatus(c, args[0])
				}
				reply, err := c.status(args[0])
				if err != nil {
					return err
				}
				return a.answer(reply, func() []string { return a.style().Status(reply) })
			})
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "go on showing it as it changes")
	return cmd
}

func (a *app) servicesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "services",
		Short: "List the services the host knows",
		Args:  positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withHost(cmd.Context(), func(c *connection) error {
				reply, err := call(c, "services", c.control.ListServices, &donav1.ListServicesRequest{})
				if err != nil {
					return err
				}
				return a.answer(reply, func() []string {
					if len(reply.GetServices()) == 0 {
						return []string{noService(c)}
					}
					return slices.Sorted(slices.Values(reply.GetServices()))
				})
			})
		},
	}
}

// noService says that there is none, and how there comes to be one.
func noService(c *connection) string {
	return "the host at " + c.target + " knows no service yet: one appears with its first endpoint, flag or policy"
}

// overview is the list of services, for people with the most important of each.
func (a *app) overview(c *connection) error {
	reply, err := call(c, "services", c.control.ListServices, &donav1.ListServicesRequest{})
	if err != nil {
		return err
	}
	if a.json {
		return a.message(reply)
	}
	if len(reply.GetServices()) == 0 {
		return a.lines(noService(c))
	}
	var all []*donav1.StatusReply
	for _, service := range slices.Sorted(slices.Values(reply.GetServices())) {
		one, err := call(c, "status of "+service, c.control.GetStatus, &donav1.GetStatusRequest{Service: service})
		if err != nil {
			var f *failure
			if errors.As(err, &f) && f.kind == "NOT_FOUND" {
				continue // it went away between the two questions
			}
			return err
		}
		all = append(all, one)
	}
	return a.lines(a.style().Overview(all)...)
}

func (a *app) watchStatus(c *connection, service string) error {
	return a.follow(c, service, func(reply *donav1.StatusReply) (bool, error) {
		if a.json {
			return false, a.message(reply)
		}
		return false, a.draw(a.style().Status(reply))
	})
}

// draw redraws the block on a terminal; elsewhere it is written below the last.
func (a *app) draw(block []string) error {
	if !a.screen.Live() {
		block = append(block, "")
	}
	a.wrote = true
	return writing(a.screen.Draw(block))
}

// follow reads the status of a service until see has seen enough. A host that
// goes away after it answered once is waited for.
func (a *app) follow(c *connection, service string, see func(*donav1.StatusReply) (bool, error)) error {
	operation := "watch of " + service
	var answered bool
	var lost time.Time
	for {
		err := readStatus(c, service, func(reply *donav1.StatusReply) (bool, error) {
			answered, lost = true, time.Time{}
			return see(reply)
		})
		var ended *failure
		switch {
		case err == nil || errors.As(err, &ended):
			return err
		case c.ctx.Err() != nil:
			return c.ctx.Err()
		case !answered || !passing(err):
			return c.refused(operation, err)
		}
		if lost.IsZero() {
			lost = a.now()
			a.note("the host at " + c.target + " went away: waiting for it")
		}
		if a.now().Sub(lost) > patience {
			return c.refused(operation, err)
		}
		if err := pause(c.ctx, time.Second/2); err != nil {
			return err
		}
	}
}

// readStatus reads one stream to its end. The first answer has a deadline.
func readStatus(c *connection, service string, see func(*donav1.StatusReply) (bool, error)) error {
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	first := time.AfterFunc(c.timeout, func() { cancel(context.DeadlineExceeded) })
	defer first.Stop()
	stream, err := c.control.WatchStatus(ctx, &donav1.GetStatusRequest{Service: service}, grpc.WaitForReady(false))
	if err != nil {
		return err
	}
	for {
		reply, err := stream.Recv()
		if err != nil {
			if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
				return status.Error(codes.DeadlineExceeded, "no first answer")
			}
			if errors.Is(err, io.EOF) {
				return status.Error(codes.Unavailable, "the host ended the watch")
			}
			return err
		}
		first.Stop()
		if enough, err := see(reply); err != nil || enough {
			return err
		}
	}
}

// passing reports whether the same request may work in a moment.
func passing(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Canceled:
		return true
	}
	return false
}

// note tells people something that is no result.
func (a *app) note(text string) {
	a.screen.Keep()
	_, _ = io.WriteString(a.errOut, "dona: "+text+"\n") // nothing depends on it
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
