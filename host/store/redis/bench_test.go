package redis_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
)

const valueBytes = 256

// BenchmarkUpdate is a soft compare-and-set of one record that is cached.
func BenchmarkUpdate(b *testing.B) {
	server := redistest.Start(b, "maxmemory-policy", "noeviction")
	s := open(b, options(b, url(server), newCluster()))
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint(callers, " callers"), func(b *testing.B) {
			loop(b, callers, func(i int) {
				key := fmt.Sprint("k", callers, "-", i)
				err := s.Update(context.Background(), store.Soft, func(tx store.Tx) error {
					if _, err := tx.Get(key); err != nil {
						return err
					}
					return tx.Put(key, make([]byte, valueBytes))
				})
				if err != nil {
					b.Error(err)
				}
			})
		})
	}
}

// BenchmarkScript is the same as a script that can do nothing else.
func BenchmarkScript(b *testing.B) {
	server := redistest.Start(b, "maxmemory-policy", "noeviction")
	c := server.Client()
	defer c.Close()
	script := goredis.NewScript(`
local old = redis.call('GETRANGE', KEYS[1], 0, 7)
if old ~= ARGV[1] then return {0, old} end
local r = redis.call('INCR', KEYS[2])
local new = struct.pack('>I8', r)
redis.call('SET', KEYS[1], new .. ARGV[2])
return {1, new}`)
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint(callers, " callers"), func(b *testing.B) {
			versions := make([]string, callers)
			loop(b, callers, func(i int) {
				key := fmt.Sprint("k", callers, "-", i)
				v, err := script.Run(context.Background(), c, []string{key, "rev"}, versions[i], make([]byte, valueBytes)).Slice()
				if err != nil {
					b.Error(err)
					return
				}
				versions[i] = v[1].(string)
			})
		})
	}
}

// loop shares b.N runs among so many callers, each with a number of its own.
func loop(b *testing.B, callers int, run func(caller int)) {
	var left atomic.Int64
	left.Store(int64(b.N))
	done := make(chan struct{})
	b.ResetTimer()
	for i := range callers {
		go func() {
			for left.Add(-1) >= 0 {
				run(i)
			}
			done <- struct{}{}
		}()
	}
	for range callers {
		<-done
	}
}
