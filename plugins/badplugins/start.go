package badplugins

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin"
)

// crash dies before the handshake and says why, differently each time when
// COUNT names a file.
func crash(self) {
	fmt.Fprintf(os.Stderr, "attempt %d failed\n", count())
	os.Exit(3)
}

// crashLater starts well, serves for a while, and dies.
func crashLater(s self) { plugin.Serve(plugin.AnalysisOf(s.id.Name, "0.1.0", &shortLived{})) }

type shortLived struct{ born sync.Once }

func (*shortLived) Evaluate(ctx context.Context, req *pluginv1.EvaluateRequest) (*pluginv1.EvaluateReply, error) {
	return evaluate(ctx, req)
}

// Health is asked at the end of a start.
func (l *shortLived) Health(context.Context) error {
	l.born.Do(func() {
		time.AfterFunc(200*time.Millisecond, func() {
			fmt.Fprintln(os.Stderr, "had enough")
			os.Exit(4)
		})
	})
	return nil
}

// count counts starts in the file that COUNT names, if any.
func count() int {
	file := os.Getenv("COUNT")
	if file == "" {
		return 1
	}
	text, _ := os.ReadFile(file)
	n, _ := strconv.Atoi(string(text))
	n++
	_ = os.WriteFile(file, []byte(strconv.Itoa(n)), 0o600)
	return n
}

// banner prints what a friendly program prints before it works.
func banner(s self) {
	fmt.Println("Welcome to BadPlugin 1.0 | licence: none | 1|2|3")
	fmt.Println(strings.Repeat("=", 60))
	serveSDK(s)
}

// words prints, explains itself and leaves.
func words(self) {
	fmt.Println("hello, I am a plugin")
	fmt.Fprintln(os.Stderr, "configuration file missing")
	os.Exit(3)
}

// garbage prints lines that look a little like handshakes.
func garbage(self) {
	for _, line := range []string{"||||", "1|1|unix", "x|y|unix|/tmp/s|grpc|", "-1|1|unix|/tmp/s|grpc|", "1|1|||grpc|", strings.Repeat("1|", 5000)} {
		fmt.Println(line)
	}
	fmt.Println("1|1|unix|/tmp/\x00nowhere|grpc|not a certificate")
	forever()
}

// linesBefore writes lines that are too long to the real stdout, and then works.
func linesBefore(s self) {
	longLines()
	serveSDK(s)
}

// longLines writes 70 KB with an end of line and 1 MB without one to descriptor
// 1. What comes next needs an end of line first.
func longLines() {
	for _, line := range []string{strings.Repeat("x", 70<<10) + "\n", strings.Repeat("y", 1<<20), "\n"} {
		write(1, []byte(line))
	}
}

// write writes to a descriptor and not to what go-plugin has made of os.Stdout.
func write(fd int, b []byte) {
	for len(b) > 0 {
		n, err := syscall.Write(fd, b)
		if err != nil {
			return
		}
		b = b[n:]
	}
}

// handshake makes a plugin that prints a handshake and does nothing else. The
// address is one where the host would look, and nobody listens.
func handshake(line string) func(self) {
	return func(self) {
		if strings.Contains(line, "%s") {
			fmt.Printf(line+"\n", socket())
		} else {
			fmt.Println(line)
		}
		forever()
	}
}

func socket() string { return filepath.Join(os.Getenv("PLUGIN_UNIX_SOCKET_DIR"), "s") }

// notAccepting listens, says so, and never answers a connection.
func notAccepting(self) {
	l, err := net.Listen("unix", socket())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer func() { _ = l.Close() }()
	fmt.Printf("1|1|unix|%s|grpc|\n", socket())
	forever()
}

// bombs writes lines to stderr that end a host that lets go-plugin read them,
// and then works.
func bombs(s self) {
	writeBombs()
	serveSDK(s)
}
