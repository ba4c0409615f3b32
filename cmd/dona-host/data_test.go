package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"google.golang.org/grpc"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// written starts a host, has it write flags, kills it and returns its data file.
func written(t *testing.T, p *process) (name string, data []byte) {
	t.Helper()
	p.start()
	client := donav1.NewControlPlaneClient(p.dial())
	for i := range 50 {
		if _, err := client.SetFlag(context.Background(), &donav1.SetFlagRequest{Rule: flagNumber(i)}); err != nil {
			t.Fatal(err)
		}
	}
	p.kill()
	name = filepath.Join(p.dir, "store.db")
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return name, data
}

func flagNumber(i int) *donav1.FlagRule {
	return &donav1.FlagRule{Service: "web", Flag: fmt.Sprintf("f%02d", i), RolloutPercent: uint32(i), RolloutVariant: strings.Repeat("v", 1+i)}
}

// TestBadData (H8): a data file that does not hold is refused by name, and left as
// it is.
func TestBadData(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	name, good := written(t, p)
	newer := filepath.Join(t.TempDir(), "newer.db")
	if err := os.WriteFile(newer, good, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(newer, 0o600, &bbolt.Options{NoFreelistSync: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte{0, 0, 0, 99})
	}); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	fromTomorrow, err := os.ReadFile(newer)
	if err != nil {
		t.Fatal(err)
	}
	heads := bytes.Clone(good)
	for at := range 8192 { // both of bbolt's
		heads[at] ^= 0x10
	}
	for _, c := range []struct {
		what, reason string
		bad          []byte
	}{
		{"cut in the middle", "truncated", good[:10_000]},
		{"cut in the first page", "truncated", good[:100]},
		{"of zero length", "empty", nil},
		{"another file", "not a bbolt file", []byte(strings.Repeat("not a store\n", 1000))},
		{"with both heads flipped", "", heads},
		{"of a newer format", "format 99, this program knows format 1", fromTomorrow},
	} {
		if err := os.WriteFile(name, c.bad, 0o600); err != nil {
			t.Fatal(err)
		}
		code, stderr := p.refuse()
		if code != exitRefused || !strings.Contains(stderr, name) || !strings.Contains(stderr, c.reason) {
			t.Errorf("%s: ends with %d, want %d, the file and %q:\n%s", c.what, code, exitRefused, c.reason, stderr)
		}
		if now, err := os.ReadFile(name); err != nil || !bytes.Equal(now, c.bad) {
			t.Errorf("%s: the file was changed (%v)", c.what, err)
		}
	}
	if err := os.WriteFile(name, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, 0o644); err != nil {
		t.Fatal(err)
	}
	if code, stderr := p.refuse(); code != exitRefused || !strings.Contains(stderr, "chmod 600 "+name) {
		t.Errorf("open to others: ends with %d:\n%s", code, stderr)
	}
	if err := os.Chmod(name, 0o600); err != nil {
		t.Fatal(err)
	}
	p.start() // the good file serves again
	intact(t, p, "the good file")
}

// TestBitFlips (H8): with one bit of the data file turned, the host refuses it by
// name, or has everything that was written.
func TestBitFlips(t *testing.T) {
	t.Parallel()
	p := newProcess(t)
	name, good := written(t, p)
	used := len(bytes.TrimRight(good, "\x00")) // it ends in a hole
	rng := rand.New(rand.NewPCG(3, 5))
	refused := 0
	for n := range flips {
		bit := rng.IntN(used * 8)
		if n%3 == 0 { // the beginnings of pages, where it hurts most
			bit = rng.IntN(used/4096)*4096*8 + rng.IntN(96*8)
		}
		bad := bytes.Clone(good)
		bad[bit/8] ^= 1 << (bit % 8)
		if err := os.WriteFile(name, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		p.log = &logBuffer{}
		p.spawn()
		serves := false
		until(t, "the host to serve or to refuse", func() bool {
			select {
			case <-p.exited:
				return true
			default:
				serves = p.serves()
				return serves
			}
		})
		if serves {
			intact(t, p, fmt.Sprintf("bit %d", bit))
			if code := p.signal(syscall.SIGTERM); code != exitOK {
				t.Errorf("bit %d: SIGTERM ends the host with %d", bit, code)
			}
			continue
		}
		refused++
		if code := p.cmd.ProcessState.ExitCode(); code != exitRefused || !strings.Contains(p.log.String(), name) {
			t.Errorf("bit %d: ends with %d, want %d and the file's name:\n%s", bit, code, exitRefused, p.log)
		}
		if now, err := os.ReadFile(name); err != nil || !bytes.Equal(now, bad) {
			t.Errorf("bit %d: the refused file was changed (%v)", bit, err)
		}
	}
	t.Logf("%d of %d flips in %d bytes refused, the others harmless", refused, flips, used)
	if refused == 0 {
		t.Error("no flip was noticed")
	}
}

// intact demands all flags from a host that serves.
func intact(t *testing.T, p *process, what string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, err := donav1.NewControlPlaneClient(p.dial()).GetStatus(ctx, &donav1.GetStatusRequest{Service: "web"}, grpc.WaitForReady(true))
	if err != nil {
		t.Errorf("%s: the host serves without its data: %v", what, err)
		return
	}
	if n := len(s.Config.Flags); n != 50 {
		t.Errorf("%s: the host serves %d of 50 flags", what, n)
		return
	}
	for i, f := range s.Config.Flags {
		if w := flagNumber(i); f.Flag != w.Flag || f.RolloutPercent != w.RolloutPercent || f.RolloutVariant != w.RolloutVariant {
			t.Errorf("%s: the host serves %v instead of %v", what, f, w)
		}
	}
}
