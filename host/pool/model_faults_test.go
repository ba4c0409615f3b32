//go:build faults

package pool_test

// The whole of both model tests; one seed is named with -seed and -seeds 1.
func init() { *modelSeeds, *redisSeeds = 1000, 200 }
