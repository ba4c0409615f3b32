package embedded_test

import (
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
	"github.com/dodona-project/dodona/host/store/storetest"
)

func TestMain(m *testing.M) {
	runChild()
	goleak.VerifyTestMain(m)
}

func TestSuite(t *testing.T) {
	t.Run("disk", func(t *testing.T) {
		storetest.Run(t, func(t testing.TB) store.Store {
			s, err := embedded.Open(filepath.Join(t.TempDir(), "data"), embedded.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return s
		})
	})
	t.Run("memory", func(t *testing.T) {
		storetest.Run(t, func(t testing.TB) store.Store {
			s := embedded.OpenMemory(embedded.Options{})
			t.Cleanup(func() { _ = s.Close() })
			return s
		})
	})
}
