package snapshot_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"github.com/dodona-project/dodona/host/snapshot"
	"github.com/dodona-project/dodona/host/store/embedded"
)

// BenchmarkFullSnapshot publishes a full snapshot of about 78 KB to 1,000 watchers
// in another process, beside one TCP write of the same bytes to each of 1,000 raw
// connections of that process, by turns. It reports the medians of this process's
// CPU time for one watcher, and their ratio.
func BenchmarkFullSnapshot(b *testing.B) {
	for _, conns := range []int{1000, 10} {
		b.Run(fmt.Sprintf("watchers=1000/connections=%d", conns), func(b *testing.B) { benchFull(b, 1000, conns) })
	}
}

func benchFull(b *testing.B, watchers, conns int) {
	st := openStore(b)
	feeds := newFeeds(b, st, &services{}, nil)
	defer feeds.Close()
	_, addr := serve(b, feeds)
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer raw.Close()
	all := ids(1150)
	apply(b, st, "a", change{put: all})
	sub := subscribe(b, feeds, "a", snapshot.Watcher{})
	bytes := next(b, sub).EncodedMessage()
	sub.Close()

	sockets, await := startClient(b, addr, raw, watchers, conns, len(bytes))
	await("grpc")
	measure := func(into *[]float64, answer string, do func()) {
		before := cpu()
		do()
		await(answer)
		*into = append(*into, float64(cpu()-before)/float64(time.Microsecond)/float64(watchers))
	}
	var ours, plain []float64
	for b.Loop() {
		measure(&ours, "grpc", func() { apply(b, st, "a", change{put: all[:1], urgent: true}) })
		measure(&plain, "raw", func() {
			for _, c := range sockets {
				if _, err := c.Write(bytes); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	o, p := median(ours), median(plain)
	b.ReportMetric(o, "cpu-µs/watcher")
	b.ReportMetric(p, "raw-cpu-µs/watcher")
	b.ReportMetric(o/p, "ratio")
}

// BenchmarkIdleWatchers connects watchers in another process, has each receive its
// first frame, and reports what one of them then keeps of this process's heap and
// stacks.
func BenchmarkIdleWatchers(b *testing.B) {
	for _, conns := range []int{1000, 10} {
		for _, endpoints := range []int{200, 2000} {
			b.Run(fmt.Sprintf("connections=%d/endpoints=%d", conns, endpoints), func(b *testing.B) {
				h, s := benchIdle(b, 1000, conns, endpoints)
				b.ReportMetric(h, "heap-B/watcher")
				b.ReportMetric(s, "stack-B/watcher")
			})
		}
	}
}

func benchIdle(b *testing.B, watchers, conns, endpoints int) (heapEach, stackEach float64) {
	st := embedded.OpenMemory(embedded.Options{})
	defer st.Close()
	feeds := newFeeds(b, st, &services{}, nil)
	defer feeds.Close()
	_, addr := serve(b, feeds)
	apply(b, st, "a", change{put: ids(endpoints)})
	sub := subscribe(b, feeds, "a", snapshot.Watcher{})
	next(b, sub)
	sub.Close()
	before, stackBefore := heap(), stack()
	_, await := startClient(b, addr, nil, watchers, conns, 0)
	await("grpc")
	return float64(heap()-before) / float64(watchers), float64(stack()-stackBefore) / float64(watchers)
}

func stack() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.StackInuse)
}

// startClient starts this program again as the client, with raw connections to raw
// when there is one. await reads its next word.
func startClient(b *testing.B, addr string, raw net.Listener, watchers, conns, size int) (sockets []net.Conn, await func(want string)) {
	b.Helper()
	rawAddr := "-"
	if raw != nil {
		rawAddr = raw.Addr().String()
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("DONA_BENCH_CLIENT=%s %s %d %d %d", addr, rawAddr, watchers, conns, size))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe() // the client ends when it closes
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = stdin.Close(); _ = cmd.Wait() })
	for range watchers {
		if raw == nil {
			break
		}
		c, err := raw.Accept()
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = c.Close() })
		sockets = append(sockets, c)
	}
	answers := bufio.NewScanner(stdout)
	return sockets, func(want string) {
		b.Helper()
		if !answers.Scan() || answers.Text() != want {
			b.Fatalf("the client said %q, want %q: %v", answers.Text(), want, answers.Err())
		}
	}
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// cpu is the user and system time that this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// benchClient is the other process: it reads, counts, and says when everybody has
// got a frame.
func benchClient(args string) error {
	part := strings.Fields(args)
	if len(part) != 5 {
		return fmt.Errorf("bench client: arguments %q", args)
	}
	numbers := make([]int, 3)
	for i := range numbers {
		var err error
		if numbers[i], err = strconv.Atoi(part[2+i]); err != nil {
			return err
		}
	}
	watchers, conns, size := numbers[0], numbers[1], numbers[2]
	var mu sync.Mutex
	counter := func(word string) func() {
		var n atomic.Int64
		return func() {
			if n.Add(1)%int64(watchers) == 0 {
				mu.Lock()
				defer mu.Unlock()
				fmt.Println(word)
			}
		}
	}
	gotRaw, gotFrame := counter("raw"), counter("grpc")
	for range watchers {
		if part[1] == "-" {
			break
		}
		c, err := net.Dial("tcp", part[1])
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
		conn, err := grpc.NewClient(part[0], grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithStaticStreamWindowSize(1<<20), grpc.WithStaticConnWindowSize(16<<20),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(discard{encoding.GetCodecV2("proto")})))
		if err != nil {
			return err
		}
		clients[i] = donav1.NewControlPlaneClient(conn)
	}
	for i := range watchers {
		stream, err := clients[i%conns].WatchConfig(context.Background(), &donav1.WatchConfigRequest{Service: "a"})
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
