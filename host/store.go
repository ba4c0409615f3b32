package host

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/go-hclog"

	"github.com/dodona-project/dodona/host/api"
	"github.com/dodona-project/dodona/host/config"
	"github.com/dodona-project/dodona/host/fsck"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
	"github.com/dodona-project/dodona/host/store/redis"
)

// openStore opens the store that the configuration names. fatal is called when it
// has closed itself, because its disk broke its promise.
func openStore(c *config.Config, log hclog.Logger, fatal func(error)) (store.Store, error) {
	if c.Store == "embedded" {
		s, err := embedded.Open(c.DataDir, embedded.Options{Logger: log, Fatal: fatal})
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	s, err := redis.Open(context.Background(), redis.Options{
		Target: c.Redis, Replicas: c.RedisReplicas, Dir: c.DataDir, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// shared reports whether other hosts use this host's store, too.
func (h *Host) shared() bool { return h.config.Store != "embedded" }

// storeOperations is what operators can do with the store: each kind has its own.
func (h *Host) storeOperations() api.StoreOperations {
	o := api.StoreOperations{
		Check: func(ctx context.Context) (fsck.Report, error) { return fsck.Run(ctx, h.store, h.config.TrustDomain) },
	}
	switch s := h.store.(type) {
	case *embedded.Store:
		o.Backup = s.Backup
	case *redis.Store:
		o.Adopt = func(ctx context.Context, actor, reason string) error {
			err := s.Adopt(ctx, actor, reason)
			if errors.Is(err, redis.ErrKnown) {
				return fmt.Errorf("%w: %w", api.ErrNothingToAdopt, err)
			}
			return err
		}
		o.Recorded, o.Others = h.recordAdoption, h.others
	}
	return o
}
