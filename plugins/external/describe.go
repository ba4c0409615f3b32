package external

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/dodona-project/dodona/plugins"
	"github.com/dodona-project/dodona/plugins/runner"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"github.com/dodona-project/dodona/sdk/plugin/line"
)

// Limits of asking files what they are.
const (
	describeTime = 2 * time.Second  // one file
	examineTime  = 20 * time.Second // one that somebody installs or pins, who waits for nothing else
	describeAll  = 5 * time.Second  // one List
	describeMost = 64 << 10         // bytes of stdout
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

// errNotAsked means that a file has not had the time to say what it is.
var errNotAsked = errors.New("it has not been asked yet which kind of plugin it is, as others came first: look again")

// kindsOf returns the kinds of plugins' files. For one that does not say it is
// what an earlier file of the name said, and KindUnknown without that; one that
// was not asked and never said is left out. Whoever was asked longest ago comes
// first, so that those that do not answer keep nobody from being asked.
func (d *Dir) kindsOf(ctx context.Context, run plugins.Run, names []string) map[string]plugins.Kind {
	ctx, cancel := context.WithTimeout(ctx, describeAll)
	defer cancel()
	d.mu.Lock()
	slices.SortStableFunc(names, func(a, b string) int { return d.asked[a].Compare(d.asked[b]) })
	d.mu.Unlock()
	kinds := make(map[string]plugins.Kind)
	turn := make(chan struct{}, atOnce)
	var asking sync.WaitGroup
	for _, name := range names {
		turn <- struct{}{}
		asking.Go(func() {
			defer func() { <-turn }()
			kind, err := d.kindNow(ctx, run, name)
			d.mu.Lock()
			defer d.mu.Unlock()
			if err == nil {
				d.said[name] = kind
			}
			if kind = d.said[name]; kind != "" || !errors.Is(err, errNotAsked) {
				kinds[name] = cmp.Or(kind, plugins.KindUnknown)
			}
		})
	}
	asking.Wait()
	return kinds
}

func (d *Dir) kindNow(ctx context.Context, run plugins.Run, name string) (plugins.Kind, error) {
	rel, err := d.newest(name)
	if err != nil {
		return "", err
	}
	f, err := d.open(rel)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	return d.ask(ctx, run, name, f)
}

// ask runs a file with --describe, unless it has said before what it is. Without
// run, and when ctx has ended, the answer is the last one, or errNotAsked.
func (d *Dir) ask(ctx context.Context, run plugins.Run, name string, f *file) (plugins.Kind, error) {
	file := identityOf(f.info)
	d.mu.Lock()
	known, ok := d.kinds[f.path]
	d.mu.Unlock()
	ok = ok && known.file == file
	if ok && (known.err == nil || time.Since(known.at) < askAgain || run == nil) {
		return known.kind, known.err
	}
	var kind plugins.Kind
	var err error
	asked := run != nil && ctx.Err() == nil
	if asked {
		kind, err = d.describe(ctx, run, name, f)
	}
	switch {
	case asked && (err == nil || ctx.Err() == nil):
	case ok:
		return known.kind, known.err
	default: // it had no time, or not all of it
		return "", fmt.Errorf("%s: %w", f.path, errNotAsked)
	}
	if err != nil {
		err = fmt.Errorf("%s does not say which kind of plugin it is: %w; cure that, or name it in the configuration under plugins.<kind>.%s", f.path, err, name)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked[name] = time.Now()
	d.kinds[f.path] = answer{file: file, kind: kind, err: err, at: d.asked[name]}
	return kind, err
}

// describe has a copy of a file run with --describe, and returns the kind it says.
func (d *Dir) describe(ctx context.Context, run plugins.Run, name string, f *file) (plugins.Kind, error) {
	program, digest, err := d.load(f, "")
	if err != nil {
		return "", err
	}
	defer program.Close()
	said, err := describe(ctx, run, plugins.File{Path: f.path, Digest: digest, Source: plugins.SourceFile, Program: program}, describeTime)
	if err != nil {
		return "", err
	}
	if said.GetName() != name {
		return "", fmt.Errorf("with --describe it calls itself %.64q: its file and folder must have its name", said.GetName())
	}
	kind, ok := plugins.KindOf(said.GetKind())
	if !ok {
		return "", fmt.Errorf("with --describe it says it is of kind %s: this host runs %s", strings.ToLower(strings.TrimPrefix(said.GetKind().String(), "KIND_")), plugins.KindWords)
	}
	return kind, nil
}

// describe has a file run with --describe, and returns what it says.
func describe(ctx context.Context, run plugins.Run, file plugins.File, within time.Duration) (*pluginv1.DescribeReply, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	file.Args = []string{"--describe"}
	out, err := run(ctx, file, describeMost)
	var refused *runner.StartError
	words := line.Of(out.LastLine, 300)
	if words != "" {
		words = "; it said: " + words
	}
	switch {
	case errors.As(err, &refused):
		return nil, refused
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("run with --describe it has not ended within %v%s", within, words)
	case err != nil:
		return nil, fmt.Errorf("run with --describe: %w%s", err, words)
	case out.Exit.Code != 0:
		return nil, fmt.Errorf("run with --describe it ended with %s%s", out.Exit, words)
	}
	reply := new(pluginv1.DescribeReply)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(out.Stdout, reply); err != nil {
		return nil, fmt.Errorf("what it prints with --describe is not a description in JSON%s", words)
	}
	return reply, nil
}
