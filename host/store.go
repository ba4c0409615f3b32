package host

import (
	"context"

	"github.com/hashicorp/go-hclog"

	"github.com/dodona-project/dodona/host/config"
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
