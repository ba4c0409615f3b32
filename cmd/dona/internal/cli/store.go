package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dodona-project/dodona/host/limits"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// checkWait is how long a check is waited for when --timeout says nothing: a moment
// more than a host takes at most.
const checkWait = 65 * time.Second

func (a *app) storeCommand() *cobra.Command {
	return group("store", "Look at the host's store, check it, back it up, restore and adopt it",
		a.storeInfoCommand(), a.storeCheckCommand(), a.storeAdoptCommand(), a.storeBackupCommand(), a.storeRestoreCommand())
}

func (a *app) storeInfoCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "info",
		Short: "Show the store, what hard writes are worth, the other hosts, and alarms",
		Args:  positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withHost(cmd.Context(), func(c *connection) error {
				h, err := call(c, "store", c.admin.GetHost, &donav1.GetHostRequest{})
				if err != nil {
					return err
				}
				return a.answer(h, func() []string { return a.style().Host(h) })
			})
		},
	}
}

func (a *app) storeAdoptCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "adopt --reason TEXT",
		Short: "Go on from what a foreign store holds; what it lacks is given up",
		Long: `Go on from what a foreign store holds: one on Redis that lost its data or was put
back. What it lacks is given up: flags, policies and rollouts that are missing have to
be made again. If its data can be brought back, do that instead. It is said at one
host, any of those that share the store; the others follow. Who adopted and why is
kept in the audit log.

  dona store adopt --reason 'the disk of the server is gone, there is no copy'`,
		Args: positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if strings.TrimSpace(reason) == "" {
				return usage("--reason is empty: say why what the store lacks is given up; it is kept in the audit log")
			}
			if err := limits.Text(reason, limits.ReasonLen); err != nil {
				return usage("--reason %v", err)
			}
			return a.withHost(cmd.Context(), func(c *connection) error {
				h, err := call(c, "adoption", c.admin.AdoptStore, &donav1.AdoptStoreRequest{Reason: reason})
				if err != nil {
					return err
				}
				return a.answer(h, func() []string {
					return append([]string{"adopted; the store goes on from what it holds", ""}, a.style().Host(h)...)
				})
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why what the store lacks is given up; for the audit log")
	return cmd
}

func (a *app) storeCheckCommand() *cobra.Command {
	var dir, file, domain string
	cmd := &cobra.Command{
		Use:   "check [--data-dir DIR | --file FILE]",
		Short: "Check every record and audit chain of the store",
		Long: `Check that every record of every service parses and agrees with the others, and that
every audit chain holds from its first entry to its head. The host does it, while
everything goes on. With --data-dir it is done here, on the embedded store of a host
that does not run, and with --file on a backup; nothing is changed, and the file
itself is checked page by page, too. It exits with 1 when something does not hold.`,
		Args: positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir != "" && file != "" {
				return usage("--data-dir and --file are two places: name one, or neither to ask the host")
			}
			if dir != "" || file != "" {
				where := file
				if dir != "" {
					where = filepath.Join(dir, "store.db")
				}
				var r *donav1.CheckStoreReply
				if err := a.busy(saying("checking "+where), func() (err error) {
					r, err = checkOffline(cmd.Context(), dir, file, domain)
					return err
				}); err != nil {
					return err
				}
				return a.checked(r, "here, offline: "+where)
			}
			if cmd.Flags().Changed("trust-domain") {
				return usage("--trust-domain is for --data-dir and --file: the host knows its own")
			}
			return a.withHost(cmd.Context(), func(c *connection) error {
				if !cmd.Flags().Changed("timeout") {
					c.timeout = checkWait
				}
				var r *donav1.CheckStoreReply
				if err := a.busy(saying("the host at "+c.target+" checks its store"), func() (err error) {
					r, err = call(c, "check", c.admin.CheckStore, &donav1.CheckStoreRequest{})
					return err
				}); err != nil {
					return err
				}
				return a.checked(r, "by the host at "+c.target)
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&dir, "data-dir", "", "data directory of a host that does not run, with an embedded store")
	fl.StringVar(&file, "file", "", "a backup of an embedded store")
	fl.StringVar(&domain, "trust-domain", "dona.local", "trust domain of that host, with --data-dir and --file: part of every chain's beginning")
	return cmd
}

// checked shows what a check has found, and fails when that is a problem.
func (a *app) checked(r *donav1.CheckStoreReply, where string) error {
	if err := a.answer(r, func() []string { return a.style().Check(r, where) }); err != nil {
		return err
	}
	if n := len(r.GetProblems()); n > 0 {
		if a.json {
			return &failure{code: ExitFailed, kind: kindTold, msg: "the store does not hold"}
		}
		return failed("BROKEN", "the store does not hold: %d problems; restore a backup, or keep a copy of it and ask for help", n)
	}
	return nil
}

func (a *app) storeBackupCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE",
		Short: "Write a copy of the host's embedded store to a file, while everything goes on",
		Long: `Write a copy of the host's embedded store to a file, which must not be there yet. It
is as of the newest hard write, the host goes on meanwhile, and the file appears when
it is whole, with mode 0600: it holds all that the host knows. Hosts on Redis have no
such backups: save the server's append-only directory.`,
		Args: positional("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := os.Lstat(args[0]); err == nil {
				return usage("FILE %s exists: name another one, or move it away", limits.Quote(args[0]))
			}
			return a.withHost(cmd.Context(), func(c *connection) error {
				var size int64
				var digest string
				var come received
				if err := a.busy(func() string { return "backup to " + args[0] + ": " + come.String() }, func() (err error) {
					size, digest, err = c.backup(args[0], &come)
					return err
				}); err != nil {
					return err
				}
				if a.json {
					return a.object(map[string]any{"file": args[0], "bytes": size, "digest": digest})
				}
				return a.lines(fmt.Sprintf("wrote %s: %d bytes, %s", args[0], size, digest))
			})
		},
	}
}

// backup writes the host's backup beside name and moves it there when it is whole.
// What comes is written to seen, too.
func (c *connection) backup(name string, seen io.Writer) (size int64, digest string, err error) {
	cannot := func(err error) error {
		return failed("OUTPUT", "the backup cannot be written: %v", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*") // 0600
	if err != nil {
		return 0, "", cannot(err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // is not there any more when all went well
	defer func() { _ = tmp.Close() }()
	sum := sha256.New()
	if size, digest, err = c.receiveBackup(io.MultiWriter(tmp, sum, seen)); err != nil {
		var f *failure
		if errors.As(err, &f) || c.ctx.Err() != nil {
			return 0, "", err
		}
		return 0, "", cannot(err)
	}
	if have := "sha256:" + hex.EncodeToString(sum.Sum(nil)); have != digest {
		return 0, "", failed("DATA_LOSS", "the backup has the digest %s, the host says %s: nothing was written, try again", have, digest)
	}
	if err := errors.Join(tmp.Sync(), tmp.Close()); err != nil {
		return 0, "", cannot(err)
	}
	// Not over a file that came meanwhile.
	if err := os.Link(tmp.Name(), name); err != nil {
		return 0, "", cannot(err)
	}
	return size, digest, nil
}

// receiveBackup copies the host's backup to w. It gives up when nothing comes for as
// long as an answer is waited for.
func (c *connection) receiveBackup(w io.Writer) (size int64, digest string, err error) {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	silent := time.AfterFunc(c.timeout, cancel)
	defer silent.Stop()
	stream, err := c.admin.BackupStore(ctx, &donav1.BackupStoreRequest{})
	for err == nil {
		var chunk *donav1.BackupChunk
		if chunk, err = stream.Recv(); err != nil {
			break
		}
		silent.Reset(c.timeout)
		if digest != "" || len(chunk.GetData()) == 0 && chunk.GetDigest() == "" {
			return 0, "", failed("DATA_LOSS", "the host at %s sends a backup that makes no sense; is it another version than this program?", c.target)
		}
		if _, err := w.Write(chunk.GetData()); err != nil {
			return 0, "", err
		}
		size += int64(len(chunk.GetData()))
		digest = chunk.GetDigest()
	}
	switch {
	case errors.Is(err, io.EOF) && digest != "":
		return size, digest, nil
	case errors.Is(err, io.EOF):
		return 0, "", failed("DATA_LOSS", "the backup from %s ended early: nothing was written, try again", c.target)
	case ctx.Err() != nil && c.ctx.Err() == nil:
		return 0, "", failed("DEADLINE_EXCEEDED", "backup: nothing came from %s for %s; look at the host, or wait longer with --timeout", c.target, c.timeout)
	}
	return 0, "", c.refused("backup", err)
}

func (a *app) storeRestoreCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "restore FILE --data-dir DIR",
		Short: "Make a data directory's store from a backup; the host must not run",
		Long: `Make the embedded store of a data directory from a backup. The host must not run, and
there must be no store in the directory: move the old one away first. The backup is
checked as a host does at its start, and 2^32 is added to the revision, so that no
version is given out twice; clients take what comes for newer than all they had.

  mv /var/lib/dona/store.db /var/lib/dona/store.db.old
  dona store restore backup.db --data-dir /var/lib/dona

A store on Redis is restored by the server: put its append-only directory back, start
it, and say "dona store adopt" at one host.`,
		Args: positional("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if dir == "" {
				return usage("--data-dir is needed: the data directory of the host")
			}
			if err := a.busy(saying("restoring "+args[0]), func() error { return restoreOffline(args[0], dir) }); err != nil {
				return err
			}
			if a.json {
				return a.object(map[string]any{"file": args[0], "data_dir": dir})
			}
			return a.lines(fmt.Sprintf("restored %s into %s; start the host", args[0], filepath.Join(dir, "store.db")))
		},
	}
	cmd.Flags().StringVar(&dir, "data-dir", "", "data directory of the host, which must not run")
	return cmd
}
