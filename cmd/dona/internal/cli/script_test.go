package cli_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

type hostKey struct{}

type otherKey struct{}

func fakeOf(ts *testscript.TestScript) *fakeHost { return ts.Value(hostKey{}).(*fakeHost) }

// TestScripts runs testdata/script against a fake host in this process, one for
// each script. Besides the usual commands the scripts have
//
//	host status FILE    give the host a service: a StatusReply as JSON
//	host play FILE...   what a watch of the service shows, in order
//	host plugins FILE   a ListPluginsReply as JSON
//	host log FILE       the log of every plugin: a PluginLogLine as JSON on each line
//	host store FILE     what it says of itself: a HostStatus as JSON
//	host check FILE     what a check of its store finds: a CheckStoreReply as JSON
//	host pool NAME FILE what the egress plane answers: NAME is proxies, workers,
//	                    availability, drain, import or extract, the file JSON
//	host warn TEXT...   the warning of each publication
//	host cut, host lie  its backups end early, or are not what it says
//	host refuse CODE TEXT...  answer everything with an error
//	host silent         answer nothing
//	host drop           break the next two watches after their first reply, and
//	                    end the next two followed logs after their last line
//	host leave          go for good with the next watch, after its first reply
//	host other ...      any of these, for the host at $OTHER_HOST
//	saw FILE            the last request that changes something, against FILE
//	validjson FILE      each line of FILE is JSON
//	code N dona ...     run dona and want this exit code
//
// At $MUTE_HOST connections are taken and nothing is ever said. On Unix
// there are also interrupt and brokenpipe, see there.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Deadline:            time.Now().Add(scriptTime),
		Setup: func(env *testscript.Env) error {
			host := newFakeHost(t)
			env.Values[hostKey{}] = host
			env.Setenv("GORACE", "atexit_sleep_ms=10") // else each run waits a second for late races
			env.Setenv("DONA_HOST", host.address)
			other := newFakeHost(t)
			env.Values[otherKey{}] = other
			env.Setenv("OTHER_HOST", other.address)
			mute, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			env.Defer(func() { _ = mute.Close() })
			env.Setenv("MUTE_HOST", mute.Addr().String())
			return nil
		},
		Cmds: scriptCommands,
	})
}

// scriptCommands are the commands above; some need a platform and add themselves.
var scriptCommands = map[string]func(*testscript.TestScript, bool, []string){
	"host": hostCommand, "saw": saw, "validjson": validJSON, "code": wantCode,
}

func hostCommand(ts *testscript.TestScript, _ bool, args []string) {
	f := fakeOf(ts)
	if args[0] == "other" {
		f, args = ts.Value(otherKey{}).(*fakeHost), args[1:]
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	read := func(file string) *donav1.StatusReply {
		reply := &donav1.StatusReply{}
		ts.Check(protojson.Unmarshal([]byte(ts.ReadFile(file)), reply))
		return reply
	}
	switch args[0] {
	case "status":
		reply := read(args[1])
		f.services[reply.GetConfig().GetService()] = reply
	case "play":
		for _, file := range args[1:] {
			reply := read(file)
			name := reply.GetConfig().GetService()
			f.plays[name] = append(f.plays[name], reply)
		}
	case "plugins":
		reply := &donav1.ListPluginsReply{}
		ts.Check(protojson.Unmarshal([]byte(ts.ReadFile(args[1])), reply))
		f.plugins = reply.GetPlugins()
	case "log":
		f.log = nil
		for _, line := range strings.Split(strings.TrimSpace(ts.ReadFile(args[1])), "\n") {
			l := &donav1.PluginLogLine{}
			ts.Check(protojson.Unmarshal([]byte(line), l))
			f.log = append(f.log, l)
		}
	case "store":
		ts.Check(protojson.Unmarshal([]byte(ts.ReadFile(args[1])), &f.store.host))
	case "check":
		ts.Check(protojson.Unmarshal([]byte(ts.ReadFile(args[1])), &f.store.check))
	case "pool":
		ts.Check(protojson.Unmarshal([]byte(ts.ReadFile(args[2])), f.pool.answer(args[1])))
	case "warn":
		f.pool.warnings = []string{strings.Join(args[1:], " ")}
	case "cut":
		f.store.cut = true
	case "lie":
		f.store.cut, f.store.lie = false, true
	case "refuse":
		n, err := strconv.ParseUint(args[1], 10, 32)
		ts.Check(err)
		f.refuse = status.Error(codes.Code(n), strings.Join(args[2:], " "))
	case "drop":
		f.drops = 2
	case "leave":
		f.leaves = true
	case "silent":
		f.silent = true
	default:
		ts.Fatalf("host has no command %q", args[0])
	}
}

func saw(ts *testscript.TestScript, _ bool, args []string) {
	f := fakeOf(ts)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last == nil {
		ts.Fatalf("the host saw no request")
	}
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(f.last)
	ts.Check(err)
	var got, want bytes.Buffer
	ts.Check(json.Indent(&got, raw, "", "  "))
	ts.Check(json.Indent(&want, bytes.TrimSpace([]byte(ts.ReadFile(args[0]))), "", "  "))
	if got.String() != want.String() {
		ts.Fatalf("the host saw\n%s\nwant\n%s", got.String(), want.String())
	}
}

func validJSON(ts *testscript.TestScript, _ bool, args []string) {
	lines := strings.Split(strings.TrimSpace(ts.ReadFile(args[0])), "\n")
	for _, line := range lines {
		if !json.Valid([]byte(line)) {
			ts.Fatalf("not JSON: %q", line)
		}
	}
}

func wantCode(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}
