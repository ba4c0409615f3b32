// Package runner runs one plugin process for go-plugin and keeps go-plugin from
// everything that a bad process could do to it: it owns the pipes, the process
// group and the waiting.
//
// Package plugins makes one Process per start. What it promises: the handshake
// line, and nothing else of the process's output, reaches go-plugin; stdout and
// stderr are read until the process is gone, however much is written; the death
// of the process is seen even while its children hold the pipes; Kill ends the
// whole group and never blocks longer than its context; when the host goes, the
// process reads end of file on its lifeline (and, on Linux, is killed by the
// kernel).
package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	goplugin "github.com/hashicorp/go-plugin/runner"

	"github.com/dodona-project/dodona/plugins/restrict"
	"github.com/dodona-project/dodona/sdk/plugin/wire"
)

// readersGrace is how long the pipes are still read after the process is gone
// and its group was killed: its last words are worth having.
const readersGrace = 250 * time.Millisecond

// How long a copy of a program may be busy, and how often that is looked at.
const (
	busyGrace = time.Second
	busyWait  = 2 * time.Millisecond
)

// Config says what to run. Nothing of it may change after New.
type Config struct {
	Name      string // for people, such as "strategy/round-robin"
	Path      string // of the program's file, for people; also what is executed, unless Program says another
	Program   Program
	Args      []string // arguments, without the program's name
	Env       []string // the whole environment; go-plugin's own variables are added last
	Dir       string   // working directory
	SocketDir string   // set by RunnerFunc: the only place where the plugin may listen

	// AddressSpace is how many bytes the process and each of its children may
	// have mapped, on Linux; 0 is no limit.
	AddressSpace uint64

	// Restrict has the program start with less than this user may do; nil is
	// without.
	Restrict *Restriction

	// Stderr is called with every line of stderr, Stdout with lines of stdout
	// that are not the handshake: without their ends, at most MaxLineLen bytes
	// long, valid during the call. One goroutine per pipe calls; they must not
	// block.
	Stderr func(line []byte)
	Stdout func(line []byte)

	// Started is called with the process group as soon as there is one, and
	// Ended when the process is gone and its group was killed, before the
	// number can be given to another process.
	Started func(pgid int)
	Ended   func(pgid int)

	// Gone is called when the process is gone and before what it left behind is
	// killed; nil is nobody. See Strays.
	Gone func(pgid int)
}

// A Program is what is executed when it is not the file itself but a copy.
type Program struct {
	Path   string   // to execute; empty = Config.Path
	Image  *os.File // what Path leads to by its descriptor; nil = Path is a file
	Folder string   // with the copy; empty = none
}

// A Restriction says how a program is started with less than this user may do; see
// package restrict.
type Restriction struct {
	Exe   string // this program, which restricts itself before it becomes the plugin
	Files uint64 // most open descriptors
}

// A Process is one run of a plugin. It implements go-plugin's runner.Runner;
// all methods may be called concurrently.
type Process struct {
	config Config
	cmd    *exec.Cmd

	stdoutR, stdoutW    *os.File
	stderrR, stderrW    *os.File
	lifelineR, lifeline *os.File

	handshakeR, quietR *io.PipeReader // what go-plugin reads
	handshakeW, quietW *io.PipeWriter

	capture *capture // takes stdout as it is; nil: it is lines, and a handshake
	readers sync.WaitGroup
	done    chan struct{} // closed when the process is gone and its output was read

	mu      sync.Mutex
	pid     int
	exit    Exit
	shake   *Handshake
	killing bool // by Kill
	dead    bool // and was so before Kill
}

var _ goplugin.Runner = (*Process)(nil)

// Exit is how a process ended.
type Exit struct {
	Code   int    // exit code, -1 when a signal ended it
	Signal string // such as "killed"; empty when it exited
	ByHost bool   // the host killed it
}

func (e Exit) String() string {
	if e.Signal != "" {
		return "signal: " + e.Signal
	}
	return "exit code " + strconv.Itoa(e.Code)
}

// New prepares a process. extraEnv is what go-plugin wants it to have.
func New(config Config, extraEnv []string) *Process {
	p := &Process{config: config, done: make(chan struct{})}
	p.cmd = &exec.Cmd{
		Path: cmp.Or(config.Program.Path, config.Path),
		Args: append([]string{"dona-plugin:" + config.Name}, config.Args...),
		Env:  append(append([]string{}, config.Env...), extraEnv...),
		Dir:  config.Dir,
	}
	p.handshakeR, p.handshakeW = io.Pipe()
	p.quietR, p.quietW = io.Pipe()
	return p
}

// Start starts the process. ctx is not used: starting is one system call. The
// error is a *StartError when it is the system that refused.
func (p *Process) Start(context.Context) error {
	if err := p.pipes(); err != nil {
		p.closeAll()
		return fmt.Errorf("start plugin %s: %w", p.config.Name, err)
	}
	p.cmd.Stdout, p.cmd.Stderr = p.stdoutW, p.stderrW
	p.cmd.ExtraFiles = []*os.File{p.lifelineR} // descriptor 3
	p.cmd.Env = append(p.cmd.Env, wire.LifelineEnv+"=3")
	p.cmd.SysProcAttr = processAttributes()
	if p.config.Restrict != nil {
		p.restrict()
	}

	started := make(chan error, 1)
	go p.live(started)
	if err := <-started; err != nil {
		return &StartError{Name: p.config.Name, Path: p.config.Path, Gone: gone(p.config.Dir, err), Err: err}
	}
	return nil
}

// restrict puts a process of this program between the start and the plugin's
// program.
func (p *Process) restrict() {
	program := p.config.Program
	rules := restrict.Rules{
		Parent: os.Getpid(), Path: p.cmd.Path, Files: p.config.Restrict.Files, AddressSpace: p.config.AddressSpace,
	}
	for _, dir := range []string{p.config.Dir, p.config.SocketDir} {
		if dir != "" {
			rules.Write = append(rules.Write, dir)
		}
	}
	if program.Folder != "" {
		rules.Run = []string{program.Folder}
	}
	if program.Image != nil {
		rules.Image = int(program.Image.Fd())
		p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, program.Image) // restrict.ImageFD
	}
	p.cmd.Path, p.cmd.Args = p.config.Restrict.Exe, rules.Args(p.cmd.Args)
}

func (p *Process) pipes() (err error) {
	for _, pair := range []struct{ r, w **os.File }{
		{&p.stdoutR, &p.stdoutW}, {&p.stderrR, &p.stderrW}, {&p.lifelineR, &p.lifeline},
	} {
		if *pair.r, *pair.w, err = os.Pipe(); err != nil {
			return err
		}
	}
	return nil
}

func (p *Process) closeAll() {
	for _, f := range []*os.File{p.stdoutR, p.stdoutW, p.stderrR, p.stderrW, p.lifelineR, p.lifeline} {
		if f != nil {
			_ = f.Close()
		}
	}
	_ = p.handshakeW.Close()
	_ = p.quietW.Close()
	close(p.done)
}

// live is the life of the process: started, waited for and reaped on one thread
// that exists as long as it does, because the kernel ties the death signal of a
// child to the thread that started it.
func (p *Process) live(started chan<- error) {
	unlock := lockThread()
	defer unlock()

	if err := p.execute(); err != nil {
		p.closeAll()
		started <- err
		return
	}
	pid := p.cmd.Process.Pid
	p.mu.Lock()
	p.pid = pid
	p.mu.Unlock()
	for _, f := range []*os.File{p.stdoutW, p.stderrW, p.lifelineR} {
		_ = f.Close()
	}
	limitProcess(pid, p.config.AddressSpace)
	if p.config.Started != nil {
		p.config.Started(pid)
	}
	p.readers.Go(func() { p.readStdout() })
	p.readers.Go(func() { readLines(p.stderrR, p.config.Stderr) })
	started <- nil

	var err error
	if awaitExit(pid) { // dead, but its number is still ours
		p.mu.Lock()
		p.dead = true
		p.mu.Unlock()
		p.sweep(pid)
		err = p.cmd.Wait()
	} else {
		err = p.cmd.Wait()
		p.sweep(pid)
	}

	p.mu.Lock()
	p.exit = exitOf(p.cmd.ProcessState, err)
	p.exit.ByHost = p.killing && p.exit.Signal == syscall.SIGKILL.String()
	p.mu.Unlock()
	p.finish()
}

// execute starts the process. A copy of a program is busy as long as a process that
// was being started when it was made has not got to its own program: nobody else
// writes to it, so that it is a matter of milliseconds.
func (p *Process) execute() error {
	err := p.cmd.Start()
	for end := time.Now().Add(busyGrace); p.config.Program.Path != "" && errors.Is(err, syscall.ETXTBSY) && time.Now().Before(end); {
		time.Sleep(busyWait)
		p.cmd = &exec.Cmd{
			Path: p.cmd.Path, Args: p.cmd.Args, Env: p.cmd.Env, Dir: p.cmd.Dir,
			Stdout: p.cmd.Stdout, Stderr: p.cmd.Stderr, ExtraFiles: p.cmd.ExtraFiles, SysProcAttr: p.cmd.SysProcAttr,
		}
		err = p.cmd.Start()
	}
	return err
}

// sweep ends what the process left behind.
func (p *Process) sweep(pid int) {
	if p.config.Gone != nil {
		p.config.Gone(pid)
	}
	killGroup(pid)
	if p.config.SocketDir != "" {
		KillStrays(p.config.SocketDir)
	}
	if p.config.Ended != nil {
		p.config.Ended(pid)
	}
}

// finish reads the last words and lets everybody know.
func (p *Process) finish() {
	read := make(chan struct{})
	go func() { p.readers.Wait(); close(read) }()
	select {
	case <-read:
	case <-time.After(readersGrace):
	}
	_ = p.stdoutR.Close() // ends a reader that a stray child keeps waiting
	_ = p.stderrR.Close()
	_ = p.handshakeW.Close()
	<-read
	_ = p.lifeline.Close()
	_ = p.quietW.Close()
	close(p.done)
}

// Done is closed when the process is gone and its output was read.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit returns how the process ended; it is meaningful when Done is closed.
func (p *Process) Exit() Exit {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exit
}

// Exited returns how the process ended by now, and whether it has.
func (p *Process) Exited() (Exit, bool) {
	select {
	case <-p.done:
		return p.Exit(), true
	default:
		return Exit{}, false
	}
}

// PID returns the process id, which is the process group's too; 0 before it
// started.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pid
}

// Handshake returns what the process said of itself, nil before it did.
func (p *Process) Handshake() *Handshake {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shake
}

// Wait waits until the process is gone, or ctx ends.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if e := p.Exit(); e.Signal != "" || e.Code != 0 {
		return errors.New(e.String())
	}
	return nil
}

// Kill ends the process group at once and waits until the process is gone, or
// ctx ends. A stopped process dies as well.
func (p *Process) Kill(ctx context.Context) error {
	p.mu.Lock()
	pid := p.pid
	if pid != 0 {
		select {
		case <-p.done:
			p.mu.Unlock()
			return nil
		default:
		}
		p.killing = p.killing || !p.dead
		_ = p.cmd.Process.Kill() // knows whether it was reaped
	}
	p.mu.Unlock()
	if pid == 0 {
		return nil
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ID is the process id as text, empty before the start.
func (p *Process) ID() string {
	if pid := p.PID(); pid != 0 {
		return strconv.Itoa(pid)
	}
	return ""
}

// Name returns the name given in Config.
func (p *Process) Name() string { return p.config.Name }

// Stdout gives go-plugin the handshake line and then nothing until the end.
func (p *Process) Stdout() io.ReadCloser { return p.handshakeR }

// Stderr gives go-plugin nothing: it must not parse what a plugin writes.
func (p *Process) Stderr() io.ReadCloser { return p.quietR }

// Diagnose adds nothing: the caller of package plugins adds the last lines of
// stderr to every failure, also to those for which go-plugin does not ask.
func (p *Process) Diagnose(context.Context) string { return "" }

// PluginToHost accepts unix sockets inside the plugin's own directory only.
func (p *Process) PluginToHost(network, address string) (string, string, error) {
	if network != "unix" {
		return "", "", fmt.Errorf("plugin %s listens on %s: allowed is a unix socket", p.config.Name, network)
	}
	if dir := filepath.Dir(filepath.Clean(address)); dir != filepath.Clean(p.config.SocketDir) {
		return "", "", fmt.Errorf("plugin %s listens outside of its directory", p.config.Name)
	}
	return network, address, nil
}

// HostToPlugin returns the address as it is: both live on one file system.
func (p *Process) HostToPlugin(network, address string) (string, string, error) {
	return network, address, nil
}
