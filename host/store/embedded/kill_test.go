package embedded_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
	"github.com/dodona-project/dodona/host/store/storetest"
)

// The child process of the kill tests: this test binary, told by the
// environment which directory to write to.
const (
	childDir   = "DONA_STORE_TEST_DIR"
	childRound = "DONA_STORE_TEST_ROUND"
	clients    = 6
)

// runChild writes until it is killed, if this process is the child. It tells
// on stdout when a write begins and when it was acknowledged.
func runChild() {
	dir := os.Getenv(childDir)
	if dir == "" {
		return
	}
	s, err := embedded.Open(dir, embedded.Options{})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf(format+"\n", args...)
	}
	var round int64
	fmt.Sscan(os.Getenv(childRound), &round)
	ctx := context.Background()
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			key := fmt.Sprint("k", client%3)
			for n := int64(1); ; n++ {
				op := storetest.Op{Key: key}
				if err := op.Read(ctx, s); err != nil {
					say("error %v", err)
					return
				}
				// Values are unique over all clients and rounds.
				value := round<<32 | n*clients + int64(client)
				say("start %d %s %d %d", client, key, op.Value, value)
				op = storetest.Op{Key: key, Write: true, Old: op.Value, New: value}
				var revision uint64
				if err := op.CompareAndSet(ctx, s, store.Hard); err != nil {
					say("error %v", err)
					return
				}
				if err := s.Update(ctx, store.Hard, func(tx store.Tx) error {
					revision = tx.Revision()
					_, err := tx.Append("log", fmt.Append(nil, client, " ", value))
					return err
				}); err != nil {
					say("error %v", err)
					return
				}
				say("done %d %t %d", client, op.OK, revision)
			}
		})
	}
	wg.Wait()
	os.Exit(1)
}

// child starts one and returns its output.
func child(t *testing.T, dir string, round int, env ...string) (*exec.Cmd, io.Reader) {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childDir+"="+dir, fmt.Sprintf("%s=%d", childRound, round))
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, out
}

// killRecord is what is known about all the writes of all the rounds.
type killRecord struct {
	h         storetest.History
	start     time.Time
	revisions map[uint64]bool
	logged    map[string]bool // log lines that were acknowledged
	highest   uint64
}

// follow reads one child's output until it ends, killing it after so many
// acknowledged writes; 0 = somebody else kills it.
func (k *killRecord) follow(t *testing.T, cmd *exec.Cmd, out io.Reader, round, after int) (acknowledged int) {
	type pending struct {
		op   storetest.Op
		call int64
	}
	open := make(map[int]pending)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		now := time.Since(k.start).Nanoseconds()
		word, rest, _ := strings.Cut(lines.Text(), " ")
		var client int
		switch word {
		case "start":
			p := pending{op: storetest.Op{Write: true}, call: now}
			if n, _ := fmt.Sscan(rest, &client, &p.op.Key, &p.op.Old, &p.op.New); n != 4 {
				continue // cut off by the kill
			}
			// A client of each round is another client.
			p.op.Client = round*clients + client
			open[client] = p
		case "done":
			var ok bool
			var revision uint64
			if n, _ := fmt.Sscan(rest, &client, &ok, &revision); n != 3 {
				continue
			}
			p := open[client]
			delete(open, client)
			p.op.OK = ok
			k.h.Add(p.op, p.call, now)
			if k.revisions[revision] {
				t.Errorf("round %d: revision %d was issued before", round, revision)
			}
			k.revisions[revision] = true
			k.highest = max(k.highest, revision)
			k.logged[fmt.Sprint(client, " ", p.op.New)] = true
			if acknowledged++; acknowledged == after {
				must(t, cmd.Process.Kill())
			}
		default:
			t.Errorf("round %d: the child says %s", round, lines.Text())
		}
	}
	_ = cmd.Wait() // it was killed
	for _, p := range open {
		p.op.Unknown = true
		k.h.Add(p.op, p.call, 0)
	}
	return acknowledged
}

// inspect opens the store in this process and compares it with what was
// acknowledged.
func (k *killRecord) inspect(t *testing.T, dir string, round int) {
	s, err := embedded.Open(dir, embedded.Options{})
	must(t, err)
	defer s.Close()
	for i := range 3 {
		op := storetest.Op{Client: -1 - round, Key: fmt.Sprint("k", i)}
		call := time.Since(k.start).Nanoseconds()
		must(t, op.Read(t.Context(), s))
		k.h.Add(op, call, time.Since(k.start).Nanoseconds())
	}
	found := make(map[string]bool)
	var revision uint64
	must(t, s.View(t.Context(), func(tx store.ReadTx) error {
		revision = tx.Revision()
		entries, err := tx.ReadLog("log", 1, 0)
		for _, e := range entries {
			found[string(e.Payload)] = true
		}
		return err
	}))
	for line := range k.logged {
		if !found[line] {
			t.Errorf("round %d: acknowledged log line %q is lost", round, line)
		}
	}
	if revision < k.highest {
		t.Errorf("round %d: reopened at revision %d, %d was issued", round, revision, k.highest)
	}
}

func newKillRecord() *killRecord {
	return &killRecord{start: time.Now(), revisions: make(map[uint64]bool), logged: make(map[string]bool)}
}

func TestKilledProcessLosesNothingAcknowledged(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	k := newKillRecord()
	for round := range 6 {
		cmd, out := child(t, dir, round)
		k.follow(t, cmd, out, round, 20+37*round)
		k.inspect(t, dir, round)
	}
	k.h.Check(t)
}
