package api_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

// calls are those of the planes' services, whose refusals and tests the pages name.
func calls() (names []string) {
	for _, desc := range []grpc.ServiceDesc{
		donav1.ControlPlane_ServiceDesc, controlplanev1.WorkerControlPlane_ServiceDesc, controlplanev1.CheckerControlPlane_ServiceDesc, controlplanev1.PoolAdmin_ServiceDesc,
	} {
		for _, m := range desc.Methods {
			names = append(names, m.MethodName)
		}
		for _, s := range desc.Streams {
			names = append(names, s.StreamName)
		}
	}
	return names
}

// TestMatrix holds docs/rpc-matrix.md to what is there: every call has a row, and
// every test that it names exists where it says.
func TestMatrix(t *testing.T) {
	page, err := os.ReadFile("../../docs/rpc-matrix.md")
	fatal(t, err)
	all := calls()
	for _, call := range all {
		if !strings.Contains(string(page), "\n| "+call+" |") {
			t.Errorf("%s has no row", call)
		}
	}
	sources := map[string]string{}
	named := regexp.MustCompile("(?:`((?:host|cmd|sdk)(?:/[a-z-]+)*)` )?`((?:Test|Fuzz)[A-Za-z]+)`").FindAllStringSubmatch(string(page), -1)
	if len(named) < len(all) {
		t.Errorf("the page names %d tests only", len(named))
	}
	for _, n := range named {
		dir, test := n[1], n[2]
		if dir == "" {
			dir = "host/api"
		}
		if sources[dir] == "" {
			files, err := filepath.Glob("../../" + dir + "/*_test.go")
			fatal(t, err)
			for _, f := range files {
				text, err := os.ReadFile(f)
				fatal(t, err)
				sources[dir] += string(text)
			}
		}
		if !strings.Contains(sources[dir], "\nfunc "+test+"(") {
			t.Errorf("%s has no %s", dir, test)
		}
	}
}
