package external

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/internal/line"
	"github.com/dodona-project/dodona/plugins/runner"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
)

// Limits of asking files what they are.
const (
	describeTime = 2 * time.Second // one file
	describeAll  = 5 * time.Second // one List
	describeMost = 64 << 10        // bytes of stdout
	busyWait     = 20 * time.Millisecond
	atOnce       = 4
	// askAgain is how long a file that gave no answer is left in peace, unless
	// it changes: the machine may have been busy.
	askAgain = 10 * time.Second
)

// An answer is what a file said of itself, and which file it was.
type answer struct {
	file identity
	kind plugins.Kind
	err  error
	at   time.Time
}

// An identity changes whenever the file does.
type identity struct {
	dev, ino uint64
	size     int64
	changed  syscall.Timespec
}

func identityOf(info fs.FileInfo) identity {
	id := identity{size: info.Size()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		id.dev, id.ino, id.changed = uint64(st.Dev), st.Ino, changeTime(st)
	}
	return id
}

// kindsOf returns the kinds of plugins' files, in order. For files that do not
// say it is what an earlier file of the name said, and KindUnknown without one.
func (d *Dir) kindsOf(names []string) []plugins.Kind {
	ctx, cancel := context.WithTimeout(d.ctx, describeAll)
	defer cancel()
	kinds := make([]plugins.Kind, len(names))
	turn := make(chan struct{}, atOnce)
	var asking sync.WaitGroup
	for i, name := range names {
		turn <- struct{}{}
		asking.Go(func() {
			defer func() { <-turn }()
			kind, err := d.kindNow(ctx, name)
			d.mu.Lock()
			defer d.mu.Unlock()
			if err == nil {
				d.said[name] = kind
			}
			kinds[i] = cmp.Or(d.said[name], plugins.KindUnknown)
		})
	}
	asking.Wait()
	return kinds
}

func (d *Dir) kindNow(ctx context.Context, name string) (plugins.Kind, error) {
	rel, err := d.newest(name)
	if err != nil {
		return "", err
	}
	f, err := d.open(rel)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	return d.ask(ctx, f)
}

func (d *Dir) kindOf(f *file) (plugins.Kind, error) { return d.ask(d.ctx, f) }

// ask runs a file with --describe, unless it has said before what it is.
func (d *Dir) ask(ctx context.Context, f *file) (plugins.Kind, error) {
	file := identityOf(f.info)
	d.mu.Lock()
	known, ok := d.kinds[f.path]
	d.mu.Unlock()
	if ok && known.file == file && (known.err == nil || time.Since(known.at) < askAgain) {
		return known.kind, known.err
	}
	kind, err := describe(ctx, f.path)
	if err != nil {
		err = fmt.Errorf("%s does not say which kind of plugin it is: %w; cure that, or name it in the configuration under plugins.<kind>.%s", f.path, err, filepath.Base(f.path))
	}
	if ctx.Err() == nil {
		d.mu.Lock()
		d.kinds[f.path] = answer{file: file, kind: kind, err: err, at: time.Now()}
		d.mu.Unlock()
	}
	return kind, err
}

// describe runs a file with --describe in an environment of its own, and
// returns the kind it says.
func describe(ctx context.Context, path string) (plugins.Kind, error) {
	private, err := os.MkdirTemp("", "dona-describe-*")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(private) }()
	ctx, cancel := context.WithTimeout(ctx, describeTime)
	defer cancel()
	config := runner.Config{
		Name: "describe", Path: path, Args: []string{"--describe"},
		Env: []string{"PATH=" + cmp.Or(os.Getenv("PATH"), "/usr/local/bin:/usr/bin:/bin"), "LANG=C.UTF-8", "TZ=UTC", "HOME=" + private, "TMPDIR=" + private},
		Dir: private, SocketDir: private,
	}
	out, err := runner.Output(ctx, config, describeMost)
	for errors.Is(err, syscall.ETXTBSY) && ctx.Err() == nil { // somebody is writing it
		time.Sleep(busyWait)
		out, err = runner.Output(ctx, config, describeMost)
	}
	var refused *runner.StartError
	words := line.Of(out.LastLine, 300)
	if words != "" {
		words = "; it said: " + words
	}
	switch {
	case errors.As(err, &refused):
		return "", refused
	case errors.Is(err, context.DeadlineExceeded):
		return "", fmt.Errorf("run with --describe it has not ended within %v%s", describeTime, words)
	case err != nil:
		return "", fmt.Errorf("run with --describe: %w%s", err, words)
	case out.Exit.Code != 0:
		return "", fmt.Errorf("run with --describe it ended with %s%s", out.Exit, words)
	}
	var reply pluginv1.DescribeReply
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(out.Stdout, &reply); err != nil {
		return "", fmt.Errorf("what it prints with --describe is not a description in JSON%s", words)
	}
	if name := reply.GetName(); name != filepath.Base(path) {
		return "", fmt.Errorf("with --describe it calls itself %.64q: its file and folder must have its name", name)
	}
	kind, ok := plugins.KindOf(reply.GetKind())
	if !ok {
		return "", fmt.Errorf("with --describe it says it is of kind %s: this host runs %s", strings.ToLower(strings.TrimPrefix(reply.GetKind().String(), "KIND_")), plugins.KindWords)
	}
	return kind, nil
}
