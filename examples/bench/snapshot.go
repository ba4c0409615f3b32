package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"github.com/dodona-project/dodona/host/audit"
	"github.com/dodona-project/dodona/host/service"
	"github.com/dodona-project/dodona/host/session"
	"github.com/dodona-project/dodona/host/snapshot"
	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/embedded"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

const (
	watchers      = 1000
	clientEnv     = "DODONA_BENCH_CLIENT"
	manyEndpoints = 1150 // endpoints: about 78 KB encoded
)

// snapshotJob publishes full snapshots from the real store, plane and feeds, and
// measures this process's CPU time a watcher; the watchers are in another one. Then
// it does so with single changes, bursts and idle watchers, beside another control
// plane.
func snapshotJob() (rows []row, err error) {
	for _, c := range []struct {
		conns, endpoints int
		limit            float64
	}{{watchers, manyEndpoints, 6}, {10, manyEndpoints, 6}, {watchers, 2, 5}, {10, 2, 1.2}} {
		m, size, err := fullSnapshots(c.conns, c.endpoints)
		if err != nil {
			return nil, err
		}
		r := row{fmt.Sprintf("%d watchers on %d connections, a frame of %.1f KB", watchers, c.conns, float64(size)/1000), m[0], m[1],
			"µs CPU a watcher", "one TCP write of the same bytes", c.limit, false, nil}
		rows = append(rows, r)
	}
	more, err := pushRows()
	return append(rows, more...), err
}

func fullSnapshots(conns, endpoints int) (medians []float64, size int, err error) {
	d, err := newDeployment(endpoints)
	if err != nil {
		return nil, 0, err
	}
	defer d.close()
	ctx := context.Background()
	frame, err := d.newest()
	if err != nil {
		return nil, 0, err
	}
	bytes := frame.EncodedMessage()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, 0, err
	}
	server := d.server()
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = raw.Close() }()
	readers, err := startReaders(clientEnv, fmt.Sprintf("%s %s %d %d", listener.Addr(), raw.Addr(), conns, len(bytes)))
	if err != nil {
		return nil, 0, err
	}
	defer readers.end()
	var sockets []net.Conn
	for range watchers {
		c, err := raw.Accept()
		if err != nil {
			return nil, 0, err
		}
		defer func() { _ = c.Close() }()
		sockets = append(sockets, c)
	}
	if err := readers.await("grpc"); err != nil {
		return nil, 0, err
	}
	flip := uint32(0)
	side := func(word string, send func() error) func() (float64, error) {
		return func() (float64, error) {
			before := cpu()
			if err := send(); err != nil {
				return 0, err
			}
			err := readers.await(word)
			return float64(cpu()-before) / float64(time.Microsecond) / watchers, err
		}
	}
	medians, err = turns(2*repeats,
		side("grpc", func() error {
			flip = 1 - flip
			return d.plane.SetFlag(ctx, "bench", &donav1.SetFlagRequest{Rule: &donav1.FlagRule{
				Service: "checkout", Flag: "f", RolloutPercent: 50 + flip, RolloutVariant: "v1"}})
		}),
		side("raw", func() error {
			for _, c := range sockets {
				if _, err := c.Write(bytes); err != nil {
					return err
				}
			}
			return nil
		}))
	return medians, len(bytes), err
}

// deployment is the real store, plane and feeds of a service in this process.
type deployment struct {
	store    store.Store
	plane    *service.Plane
	sessions *session.Registry
	feeds    *snapshot.Feeds
}

// newDeployment returns one whose service has so many endpoints.
func newDeployment(endpoints int) (*deployment, error) {
	return deploy(embedded.OpenMemory(embedded.Options{}), endpoints)
}

// deploy makes one on st, which it owns.
func deploy(st store.Store, endpoints int) (*deployment, error) {
	plane := service.New(st, audit.New("bench.local"), "bench")
	sessions, err := session.New(session.Options{Store: st, Plane: plane, PlaneName: "service"})
	if err != nil {
		return nil, err
	}
	if err := sessions.Start(context.Background()); err != nil {
		return nil, err
	}
	d := &deployment{store: st, plane: plane, sessions: sessions}
	for i := range endpoints {
		if err := d.put(i, 8080); err != nil {
			return nil, err
		}
	}
	d.feeds, err = snapshot.New(snapshot.Options{Store: st, Source: plane.Source()})
	return d, err
}

// put registers an endpoint, or gives it another port.
func (d *deployment) put(i, port int) error {
	beat := &donav1.EndpointHeartbeat{Service: "checkout", EndpointId: fmt.Sprintf("checkout-endpoint-%05d", i),
		Address: fmt.Sprintf("10.0.%d.%d:%d", i/250, i%250+1, port), Variant: "v1", Region: "eu-west", Zone: "eu-west-1a"}
	_, err := d.sessions.Register(context.Background(), session.Registration{Scope: beat.Service, ID: beat.EndpointId, Payload: beat})
	return err
}

// version is the newest that the service's snapshot can have.
func (d *deployment) version() (version uint64, err error) {
	err = d.store.View(context.Background(), func(tx store.ReadTx) error {
		head, err := d.plane.Head(tx, "checkout")
		version = head.Version
		return err
	})
	return version, err
}

// newest returns the snapshot that is published. The feed is there from then on.
func (d *deployment) newest() (*snapshot.Frame, error) {
	sub, err := d.feeds.Subscribe("checkout", snapshot.Watcher{})
	if err != nil {
		return nil, err
	}
	defer sub.Close()
	return sub.Next(context.Background())
}

func (d *deployment) server() *grpc.Server {
	server := grpc.NewServer(append(snapshot.ServerOptions(), grpc.MaxConcurrentStreams(250))...)
	donav1.RegisterControlPlaneServer(server, &watchOnly{feeds: d.feeds})
	return server
}

func (d *deployment) close() {
	d.feeds.Close()
	_ = d.store.Close()
}

type watchOnly struct {
	donav1.UnimplementedControlPlaneServer
	feeds *snapshot.Feeds
}

func (w *watchOnly) WatchConfig(req *donav1.WatchConfigRequest, stream donav1.ControlPlane_WatchConfigServer) error {
	sub, err := w.feeds.Subscribe(req.Service, snapshot.Watcher{AcceptDelta: req.AcceptDelta})
	if err != nil {
		return err
	}
	return w.feeds.Serve(stream.Context(), stream, sub)
}

// readers is the process on the other side.
type readers struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser // the process ends when it closes
	words *bufio.Scanner
}

// startReaders starts this program again, as what env stands for.
func startReaders(env, args string) (*readers, error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), env+"="+args)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &readers{cmd, stdin, bufio.NewScanner(stdout)}, cmd.Start()
}

// line is what the process says next.
func (r *readers) line() (string, error) {
	if !r.words.Scan() {
		return "", errors.New("a process of this program has ended, though nobody told it to")
	}
	return r.words.Text(), nil
}

func (r *readers) await(word string) error {
	said, err := r.line()
	if err != nil {
		return err
	}
	if said != word {
		return fmt.Errorf("the process of the watchers said %q, not %q", said, word)
	}
	return nil
}

func (r *readers) end() {
	_ = r.stdin.Close()
	_ = r.cmd.Wait()
}

// asClient turns this process into the watchers when it was started as them.
func asClient() { asReaders(clientEnv, read) }

func asReaders(env string, read func(args string) error) {
	args := os.Getenv(env)
	if args == "" {
		return
	}
	if err := read(args); err != nil {
		fmt.Fprintln(os.Stderr, "bench: watchers:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func read(args string) error {
	var grpcAddr, rawAddr string
	var conns, size int
	if _, err := fmt.Sscan(strings.TrimSpace(args), &grpcAddr, &rawAddr, &conns, &size); err != nil {
		return err
	}
	var mu sync.Mutex
	counter := func(word string) func() {
		var n atomic.Int64
		return func() {
			if n.Add(1)%watchers == 0 {
				mu.Lock()
				defer mu.Unlock()
				fmt.Println(word)
			}
		}
	}
	gotRaw, gotFrame := counter("raw"), counter("grpc")
	for range watchers {
		c, err := net.Dial("tcp", rawAddr)
		if err != nil {
			return err
		}
		go func() {
			for buf := make([]byte, size); ; gotRaw() {
				if _, err := io.ReadFull(c, buf); err != nil {
					return
				}
			}
		}()
	}
	clients := make([]donav1.ControlPlaneClient, conns)
	for i := range clients {
		conn, err := grpc.NewClient(grpcAddr, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithStaticStreamWindowSize(1<<20), grpc.WithStaticConnWindowSize(16<<20),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(discard{encoding.GetCodecV2("proto")})))
		if err != nil {
			return err
		}
		clients[i] = donav1.NewControlPlaneClient(conn)
	}
	for i := range watchers {
		stream, err := clients[i%conns].WatchConfig(context.Background(), &donav1.WatchConfigRequest{Service: "checkout"})
		if err != nil {
			return err
		}
		go func() {
			for {
				if _, err := stream.Recv(); err != nil {
					return
				}
				gotFrame()
			}
		}()
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// discard reads messages without looking into them.
type discard struct{ encoding.CodecV2 }

func (discard) Unmarshal(mem.BufferSlice, any) error { return nil }
