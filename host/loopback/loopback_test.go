package loopback_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/dodona-project/dodona/host/loopback"
)

const asks = "DODONA_ASKS_FOR_PORTS"

// TestMain lets the tests start this program as one that asks for ports.
func TestMain(m *testing.M) {
	if os.Getenv(asks) == "" {
		goleak.VerifyTestMain(m)
		return
	}
	for range 100 {
		address, err := loopback.Free()
		if err != nil {
			panic(err)
		}
		fmt.Println(address)
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // its ports are its own until it ends
}

// TestFree: of several processes that ask at once, none is given what another has, and
// each address can be listened on.
func TestFree(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var answers []*bufio.Scanner
	for range 4 {
		cmd := exec.Command(program)
		cmd.Env = append(os.Environ(), asks+"=1")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = in.Close()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
		answers = append(answers, bufio.NewScanner(out))
	}
	var all []string
	for range 100 {
		address, err := loopback.Free()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, address)
		for _, from := range answers {
			if !from.Scan() {
				t.Fatalf("a process ended early: %v", from.Err())
			}
			all = append(all, from.Text())
		}
	}
	for _, address := range all {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
	}
	slices.Sort(all)
	if n := len(slices.Compact(slices.Clone(all))); n != 500 {
		t.Errorf("of 500 addresses %d are different", n)
	}
}
