//go:build faults

package pool_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/host/pool"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
)

// importStore tells the child of TestImportKilled where its store is: a directory, or
// the URL of a server.
const importStore = "DONA_POOL_TEST_IMPORT"

func openImportStore(t *testing.T, where string) store.Store {
	if strings.Contains(where, "://") {
		return openAt(t, where, "import", fmt.Sprint("host", os.Getpid()))
	}
	st, err := embedded.Open(where, embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return st
}

// TestImportChild is the child: it imports, and says before each transaction that it
// begins one.
func TestImportChild(t *testing.T) {
	where := os.Getenv(importStore)
	if where == "" {
		t.Skip("TestImportKilled runs it")
	}
	m := &measured{Store: openImportStore(t, where), fail: func(store.Durability) error {
		fmt.Println("part")
		return nil
	}}
	p := pool.New(pool.Options{Store: m, Audit: audit.New("example.org"), HostID: "child"})
	if _, err := p.Import(t.Context(), operator, &controlplanev1.ImportProxiesRequest{Upstream: "dc", List: largeList(limits.ProxiesPerUpstream)}); err != nil {
		t.Fatal(err)
	}
	fmt.Println("whole")
}

// TestImportKilled kills a host in the middle of an import: what is there is what the
// audit log says, nothing that was acknowledged is lost, and the same list again
// imports the rest.
func TestImportKilled(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		where := filepath.Join(t.TempDir(), "data")
		killedImport(t, where)
	})
	t.Run("redis", func(t *testing.T) { killedImport(t, "redis://"+redistest.Start(t, redistest.Safe...).Addr) })
}

func killedImport(t *testing.T, where string) {
	t.Run("publish", func(t *testing.T) { worldOver(t, openImportStore(t, where), newClock()) })
	begun := 1 + rand.IntN(19)
	child := exec.Command(os.Args[0], "-test.run", "^TestImportChild$", "-test.v")
	child.Env = append(os.Environ(), importStore+"="+where)
	out, err := child.StdoutPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill() }()
	parts := 0
	for lines := bufio.NewScanner(out); lines.Scan(); {
		switch lines.Text() {
		case "part":
			if parts++; parts == begun {
				_ = child.Process.Kill()
			}
		case "whole":
			t.Log("it was quicker than the kill")
		}
	}
	_ = child.Wait() // it was killed
	afterwards(t, openImportStore(t, where), (begun-1)*500)
}

// afterwards looks at what an import left that was cut off, and imports the rest.
func afterwards(t *testing.T, st store.Store, acknowledged int) {
	t.Helper()
	w := &world{t: t, ctx: t.Context(), store: st, log: audit.New("example.org")}
	w.p = w.host("h1")
	there := len(w.proxies())
	if _, added, _ := w.imported(); there != added || there < acknowledged || there%500 != 0 {
		t.Errorf("there are %d proxies, %d by the audit log, %d were acknowledged", there, added, acknowledged)
	}
	t.Logf("cut off after %d", there)
	resp, err := w.p.Import(w.ctx, operator, &controlplanev1.ImportProxiesRequest{Upstream: "dc", List: largeList(limits.ProxiesPerUpstream)})
	w.must(err)
	if int(resp.Refreshed) != there || int(resp.Added) != limits.ProxiesPerUpstream-there || len(w.proxies()) != limits.ProxiesPerUpstream {
		t.Errorf("the same again added %d and refreshed %d", resp.Added, resp.Refreshed)
	}
	if _, added, _ := w.imported(); added != limits.ProxiesPerUpstream {
		t.Errorf("by the audit log there are %d", added)
	}
}

// TestImportServerKilled is the same of a server that is killed and comes back.
func TestImportServerKilled(t *testing.T) {
	server := redistest.Start(t, redistest.Safe...)
	where := "redis://" + server.Addr
	begun, parts := 2+rand.IntN(18), 0
	m := &measured{Store: openImportStore(t, where)}
	w := worldOver(t, m, newClock())
	m.fail = func(store.Durability) error {
		if parts++; parts == begun {
			server.Kill()
			server.Restart()
		}
		return nil
	}
	resp, err := w.p.Import(w.ctx, operator, &controlplanev1.ImportProxiesRequest{Upstream: "dc", List: largeList(limits.ProxiesPerUpstream)})
	t.Logf("the import: %d added, %v", resp.GetAdded(), err)
	if err == nil && resp.Added != limits.ProxiesPerUpstream {
		t.Errorf("it went well, and added %d", resp.Added)
	}
	afterwards(t, m, (begun-1)*500)
}
