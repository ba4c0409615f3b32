package plugin

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

func TestServerRefusesWrongDefinitions(t *testing.T) {
	if _, err := NewServer(Analysis("Wrong Name", "0.1.0", silent), nil); err == nil || !strings.Contains(err.Error(), "Wrong Name") {
		t.Errorf("a wrong name: %v", err)
	}
	if _, err := NewServer(AnalysisOf("x", "0.1.0", wrongConfigure{}), nil); err == nil || !strings.Contains(err.Error(), "Configure") {
		t.Errorf("a wrong Configure: %v", err)
	}
}

type wrongConfigure struct{ AnalysisFunc }

func (wrongConfigure) Configure(string) {}

// With --attach a plugin serves whoever comes to its socket, says where that is, and
// leaves nothing behind when it is interrupted.
func TestAttach(t *testing.T) {
	if os.Getenv("TEST_ATTACH") != "" {
		os.Exit(serve(Analysis("attached", "1.2.3", silent), []string{"--attach"}))
	}
	tmp := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestAttach$")
	// What a shell with a host's variables in it would pass on is no matter.
	cmd.Env = append(os.Environ(), "TEST_ATTACH=1", "TMPDIR="+tmp, "PLUGIN_CLIENT_CERT=nonsense")
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	socket := ""
	lines := bufio.NewScanner(out)
	for socket == "" && lines.Scan() {
		_, socket, _ = strings.Cut(lines.Text(), "dona-host --dev --attach analysis/attached=")
	}
	if !strings.HasPrefix(socket, tmp) {
		t.Fatalf("the socket is %q", socket)
	}
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	said, err := pluginv1.NewLifecycleClient(conn).Describe(ctx, &pluginv1.DescribeRequest{}, grpc.WaitForReady(true))
	if err != nil || said.GetName() != "attached" || said.GetVersion() != "1.2.3" {
		t.Errorf("it says %v, %v", said, err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if complaints.Len() > 0 {
		t.Errorf("it says %q", complaints.String())
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
