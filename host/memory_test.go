package host

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"
)

// TestMemory: what cannot be given back is counted, and what a collection will free is
// not.
func TestMemory(t *testing.T) {
	was := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(was)
	if _, limit := memory(); limit != 0 {
		t.Errorf("without a limit it is %d", limit)
	}
	debug.SetMemoryLimit(4 << 30)
	runtime.GC()
	before, limit := memory()
	if limit != 4<<30 || before == 0 || before > 1<<30 {
		t.Errorf("%d of %d are used", before, limit)
	}
	held := make([]byte, 64<<20)
	runtime.GC()
	if now, _ := memory(); now < before+60<<20 {
		t.Errorf("64 MiB are held, and used are %d more", now-before)
	}
	runtime.KeepAlive(held)
	runtime.GC()
	if now, _ := memory(); now > before+32<<20 {
		t.Errorf("they are gone, and used are %d more", now-before)
	}
}
