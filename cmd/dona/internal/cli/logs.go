package cli

import (
	"context"
	"errors"
	"io"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

const (
	logLines      = 1000 // that a host gives at most
	shownTroubles = 5
)

func (a *app) pluginLogsCommand() *cobra.Command {
	var last uint32
	var follow bool
	cmd := &cobra.Command{
		Use:   "logs PLUGIN",
		Short: "Show the last lines of a plugin's log; with -f go on with those that come",
		Long: `Show the last lines of a plugin's log: what its processes wrote and what the host
said of them. In brackets is which process, by generation. With -f go on with the
lines that come, until interrupted.` + aboutPlugin,
		Args: positional("PLUGIN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if last < 1 || last > logLines {
				return usage("--last is %d: allowed are 1 to %d", last, logLines)
			}
			return a.withPlugin(cmd, args[0], func(c *connection, p *donav1.PluginRequest) error {
				return c.tail(&donav1.TailPluginLogsRequest{Kind: p.GetKind(), Name: p.GetName(), Last: last, Follow: follow}, func(l *donav1.PluginLogLine) error {
					return a.answer(l, func() []string { return []string{a.style().LogLine(l)} })
				})
			})
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with the lines that come")
	cmd.Flags().Uint32Var(&last, "last", 100, "how many lines to begin with, 1 to 1000")
	return cmd
}

// troubles are the last warnings and errors in a plugin's log, oldest first.
func (c *connection) troubles(p *donav1.PluginRequest) (found []*donav1.PluginLogLine, err error) {
	err = c.tail(&donav1.TailPluginLogsRequest{Kind: p.GetKind(), Name: p.GetName(), Last: logLines}, func(l *donav1.PluginLogLine) error {
		if l.GetLevel() == "warn" || l.GetLevel() == "error" {
			found = append(found, l)
		}
		return nil
	})
	return found[max(0, len(found)-shownTroubles):], err
}

// tail reads a plugin's log. Who follows has a deadline until the host has
// accepted, as a plugin may be silent for long; who does not has one for all.
func (c *connection) tail(request *donav1.TailPluginLogsRequest, each func(*donav1.PluginLogLine) error) error {
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	late := time.AfterFunc(c.timeout, func() { cancel(context.DeadlineExceeded) })
	defer late.Stop()
	refuse := func(err error) error {
		switch cause := context.Cause(ctx); {
		case errors.Is(cause, syscall.EPIPE):
			return writing(cause)
		case errors.Is(cause, context.DeadlineExceeded):
			err = status.Error(codes.DeadlineExceeded, "no answer")
		}
		return c.refused("log of "+request.GetKind()+"/"+request.GetName(), err)
	}
	stream, err := c.admin.TailPluginLogs(ctx, request)
	if err == nil {
		_, err = stream.Header()
	}
	if err != nil {
		return refuse(err)
	}
	if request.GetFollow() {
		late.Stop()
		go func() {
			if readerGone(ctx) {
				cancel(syscall.EPIPE)
			}
		}()
	}
	for {
		line, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && !request.GetFollow():
			return nil
		case errors.Is(err, io.EOF):
			return refuse(status.Error(codes.Unavailable, "the host ended it"))
		case err != nil:
			return refuse(err)
		}
		if err := each(line); err != nil {
			return err
		}
	}
}
