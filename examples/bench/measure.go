package main

import (
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const repeats = 9

// turns runs the sides by turns and returns the median of each.
func turns(n int, sides ...func() (float64, error)) ([]float64, error) {
	all := make([][]float64, len(sides))
	for range n {
		for i, side := range sides {
			v, err := side()
			if err != nil {
				return nil, err
			}
			all[i] = append(all[i], v)
		}
	}
	medians := make([]float64, len(sides))
	for i := range all {
		medians[i] = median(all[i])
	}
	return medians, nil
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// cpu is the user and system time that this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// nsPerOp is how much CPU time one of n takes of the goroutine that calls it. What
// others do, on this machine or in the background of the same program, is not in it.
func nsPerOp(n int, op func()) func() (float64, error) {
	return func() (float64, error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		begin := threadCPU()
		for range n {
			op()
		}
		return float64((threadCPU() - begin).Nanoseconds()) / float64(n), nil
	}
}

// threadCPU is the user and system time that this thread has used.
func threadCPU() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// rate runs op on callers goroutines for about d and returns operations a second.
func rate(callers int, d time.Duration, op func(caller int) error) (float64, error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var total int
	var failed error
	begin := time.Now()
	for c := range callers {
		wg.Go(func() {
			n := 0
			var err error
			for time.Since(begin) < d && err == nil {
				if err = op(c); err == nil {
					n++
				}
			}
			mu.Lock()
			defer mu.Unlock()
			total += n
			if err != nil {
				failed = err
			}
		})
	}
	wg.Wait()
	return float64(total) / time.Since(begin).Seconds(), failed
}
