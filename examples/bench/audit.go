package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/transparency-dev/tessera"
	"github.com/transparency-dev/tessera/storage/posix"
	"golang.org/x/mod/sumdb/note"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
	"github.com/dodona-project/dodona/sdk/attest"
)

const (
	auditTurn    = 1500 * time.Millisecond
	auditRepeats = 9
	entryBytes   = 300 // of a line, about
	chainLen     = 500_000
)

// auditJob appends durable entries to one chain, beside a transparency log that is
// made for that, and verifies a long chain beside the hash alone.
func auditJob() ([]row, error) {
	dir, err := os.MkdirTemp("", "dona-bench-*")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	st, err := embedded.Open(filepath.Join(dir, "ours"), embedded.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = st.Close() }()
	log := audit.New("example.org")
	entry := audit.Entry{Kind: "flag.set", Actor: "spiffe://example.org/admin/alice", Detail: map[string]string{
		"flag": "checkout-new-ui", "rollout_percent": "10", "rollout_variant": "v2", "rules": "3",
	}}
	ours := func(int) error {
		return st.Update(context.Background(), store.Hard, func(tx store.Tx) error { return log.Append(tx, "checkout", entry) })
	}
	var rows []row
	for _, c := range []struct {
		callers int
		goal    float64
	}{{1, 5}, {64, 2}, {256, 2}, {1024, 3}} {
		side := func(op func(int) error) func() (float64, error) {
			return func() (float64, error) { return rate(c.callers, auditTurn, op) }
		}
		peer, end, err := openTessera(filepath.Join(dir, fmt.Sprint("tessera-", c.callers)), c.callers)
		if err != nil {
			return nil, err
		}
		m, err := turns(auditRepeats, side(ours), side(peer))
		end()
		if err != nil {
			return nil, err
		}
		work := fmt.Sprintf("append, %d callers", c.callers)
		if c.callers == 1 {
			work = "append, 1 caller"
		}
		rows = append(rows, row{work, m[0], m[1], "/s", "Tessera v1.0.4, POSIX", c.goal, true, nil})
	}
	verified, err := verifyRow()
	return append(rows, verified), err
}

// openTessera is a log in files that answers when an entry has its place for good.
// A batch is as large as there are callers, so that a full one goes at once, and none
// waits for long.
func openTessera(dir string, callers int) (add func(int) error, end func(), err error) {
	ctx, cancel := context.WithCancel(context.Background())
	key, _, err := note.GenerateKey(rand.Reader, "bench.example.org")
	if err != nil {
		cancel()
		return nil, nil, err
	}
	signer, err := note.NewSigner(key)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	driver, err := posix.New(ctx, posix.Config{Path: dir})
	if err != nil {
		cancel()
		return nil, nil, err
	}
	appender, shutdown, _, err := tessera.NewAppender(ctx, driver, tessera.NewAppendOptions().
		WithCheckpointSigner(signer).WithBatching(uint(callers), time.Millisecond).WithCheckpointInterval(time.Second))
	if err != nil {
		cancel()
		return nil, nil, err
	}
	body := strings.Repeat("x", entryBytes-16)
	add = func(int) error {
		_, err := appender.Add(ctx, tessera.NewEntry([]byte(rand.Text()[:16]+body)))()
		return err
	}
	return add, func() { _ = shutdown(ctx); cancel() }, nil
}

// verifyRow checks a chain line by line, and beside it hashes the same bytes.
func verifyRow() (row, error) {
	lines := make([][]byte, chainLen)
	hash := attest.Genesis("example.org", "checkout")
	for i := range lines {
		lines[i] = fmt.Appendf(nil, `{"v":"dona-audit-v1","seq":%d,"time_ms":%d,"service":"checkout","kind":"call.decision","actor":"spiffe://example.org/svc/web","detail":{"allowed_regions":"eu-central,eu-west","count":"%d","decision":"allow","endpoint_region":"eu-west"},"evidence":[],"prev":"%x"}`,
			i+1, 1767225600000+i, i%100+1, hash)
		hash = sha256.Sum256(lines[i])
	}
	perSecond := func(op func() error) func() (float64, error) {
		return func() (float64, error) {
			begin := time.Now()
			err := op()
			return chainLen / time.Since(begin).Seconds(), err
		}
	}
	m, err := turns(auditRepeats,
		perSecond(func() error {
			_, err := attest.NewChain("example.org", "checkout").AddAll(lines)
			return err
		}),
		perSecond(func() error {
			for _, line := range lines {
				hashed = sha256.Sum256(line)
			}
			return nil
		}))
	if err != nil {
		return row{}, err
	}
	return row{fmt.Sprintf("verify %d entries of %d bytes", chainLen, len(lines[chainLen/2])), m[0], m[1], "/s", "SHA-256 of the same bytes", 0.6, true, nil}, nil
}

var hashed [32]byte // so that hashing is not for nothing
