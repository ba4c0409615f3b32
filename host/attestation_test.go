package host_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/dodona-project/dodona/host"
	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/config"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"github.com/dodona-project/dodona/sdk/attest"
)

// TestAttestationKey: the key is made at the first start and stays; a host without
// it, with another or with one that others can read is refused, but for --dev,
// which warns of another.
func TestAttestationKey(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	file := filepath.Join(dir, "attestation.key")
	recorded := func() (id string) {
		st, err := embedded.Open(dir, embedded.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = st.Close() }()
		var have statev1.AttestationKey
		if err := st.View(context.Background(), func(tx store.ReadTx) error {
			_, err := store.Load(tx, "attestation/key", &have)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return have.GetKeyId()
	}
	var id string
	for tries := 0; id == "" && tries < 10; tries++ { // a host that is stopped at once may not have come to it
		r := start(t, map[string]string{"data-dir": dir})
		conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		reply, err := donav1.NewControlPlaneClient(conn).GetAttestation(context.Background(), &donav1.AttestationRequest{Service: audit.HostChain, Nonce: "n"})
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		public, err := os.ReadFile(filepath.Join(dir, "attestation.pem"))
		if err != nil {
			t.Fatal(err)
		}
		key, err := attest.ParseKey(public)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := attest.Verify([]attest.Page{{Report: reply.ReportJson, Signature: reply.Signature}}, attest.Options{Key: key}); err != nil {
			t.Fatal(err)
		}
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		id = recorded()
	}
	key, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s, err := audit.OpenSigner(file, false)
	if err != nil || s.KeyID() != id {
		t.Fatalf("%v, the store knows %q", err, id)
	}

	try := func(dev bool, named string) (string, error) {
		c, err := config.Load("", nil, map[string]string{"dev": "true", "data-dir": dir, "grpc-listen": "127.0.0.1:0", "http-listen": "127.0.0.1:0", "attestation-key": named})
		if err != nil {
			return "", err
		}
		c.Dev = dev
		var log strings.Builder
		h, err := host.New(c, hclog.New(&hclog.LoggerOptions{Output: &log}))
		if err != nil {
			return log.String(), err
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // it was wired, and that is all there is to see
		if err = h.Run(ctx); errors.Is(err, context.Canceled) {
			err = nil
		}
		return log.String(), err
	}
	refused := func(what, want, named string) {
		t.Helper()
		if _, err := try(false, named); !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "PRIVATE") {
			t.Errorf("%s: %v, want a refusal with %q", what, err, want)
		}
	}
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	refused("a key that its group may read", "chmod 600", "")
	if _, err := try(true, ""); !errors.Is(err, store.ErrRefused) {
		t.Errorf("with dev, a key that its group may read: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	refused("no key", "there is no attestation key "+file, "")
	if _, err := os.Stat(file); err == nil {
		t.Error("a refused start made a key")
	}
	other := filepath.Join(t.TempDir(), "other.key")
	if _, err := audit.OpenSigner(other, true); err != nil {
		t.Fatal(err)
	}
	refused("another key", id, other)
	if log, err := try(true, other); err != nil || !strings.Contains(log, id) {
		t.Errorf("with dev, another key: %v\n%s", err, log)
	}
	var wrong *config.Error
	if _, err := try(false, filepath.Join(t.TempDir(), "none.key")); !errors.As(err, &wrong) || !strings.Contains(err.Error(), "audit.key_file") {
		t.Errorf("a named key that is not there: %v", err)
	}
	if err := os.WriteFile(file, key, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := recorded(); got != id {
		t.Errorf("the store now knows %s", got)
	}
}
