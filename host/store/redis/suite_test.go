package redis_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/redis"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
	"github.com/dodona-project/dodona/host/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// slack is the time of a call on a machine that has other things to do.
const slack = 20 * time.Second

func logger() hclog.Logger {
	if testing.Verbose() && os.Getenv("DONA_TEST_LOG") != "" {
		return hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: os.Stderr})
	}
	return nil
}

var clusters atomic.Int64

// newCluster names data of its own on a shared server.
func newCluster() string { return fmt.Sprint("c", clusters.Add(1)) }

// options for a store of this cluster at url, with calls that may take their time.
func options(t testing.TB, url, cluster string) redis.Options {
	t.Helper()
	target, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	target.Cluster = cluster
	return redis.Options{Target: target, Dir: dataDir(t), CallTimeout: slack, Logger: logger()}
}

// dataDir is where a host's data directory will be.
func dataDir(t testing.TB) string { return filepath.Join(t.TempDir(), "data") }

// open opens a store and waits until it is ready.
func open(t testing.TB, o redis.Options) *redis.Store {
	t.Helper()
	s, err := redis.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	redistest.Await(t, "the store is ready", func() bool { return s.Info().State == "ready" })
	return s
}

func url(s *redistest.Server) string { return "redis://" + s.Addr }

func TestSuite(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	storetest.Run(t, func(t testing.TB) store.Store {
		return open(t, options(t, url(server), newCluster()))
	})
}

func TestSuiteOverSentinels(t *testing.T) {
	g := redistest.StartGroup(t, 2, 30*time.Second, redistest.Safe...)
	storetest.Run(t, func(t testing.TB) store.Store {
		o := options(t, g.URL(), newCluster())
		o.Replicas = 2
		return open(t, o)
	})
}
