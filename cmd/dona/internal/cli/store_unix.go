//go:build unix

package cli

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/dodona-project/dodona/host/fsck"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// checkOffline checks the store in a data directory, or a backup, without a host.
func checkOffline(ctx context.Context, dir, file, trustDomain string) (*donav1.CheckStoreReply, error) {
	var r fsck.Report
	look := func(s store.Store) (err error) {
		r, err = fsck.Run(ctx, s, trustDomain)
		return err
	}
	var err error
	if dir != "" {
		err = embedded.ReadDir(dir, look)
	} else {
		err = embedded.ReadFile(file, look)
	}
	if err != nil {
		return nil, storeFailed("check", err)
	}
	reply := &donav1.CheckStoreReply{Services: uint32(r.Services), Records: uint64(r.Records), Problems: r.Problems}
	for _, c := range r.Chains {
		reply.Chains = append(reply.Chains, &donav1.CheckedChain{Chain: c.Name, Entries: c.Entries, Head: c.Head})
	}
	return reply, nil
}

func restoreOffline(file, dir string) error {
	f, err := os.Open(file)
	if err != nil {
		return usage("FILE cannot be read: %v", err)
	}
	defer func() { _ = f.Close() }()
	if err := embedded.Restore(dir, f); err != nil {
		return storeFailed("restore", err)
	}
	return nil
}

func storeFailed(operation string, err error) error {
	switch {
	case errors.Is(err, store.ErrRefused):
		return &failure{code: ExitRefused, kind: "REFUSED", msg: operation + ": " + err.Error()}
	case errors.Is(err, fs.ErrNotExist):
		return usage("%s: %v", operation, err)
	}
	return failed("STORE", "%s: %v", operation, err)
}
