package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
)

const pushEnv = "DODONA_BENCH_PUSH"

// versionReaders is the process of the watchers. It is told a version and answers
// when every watcher has it.
type versionReaders struct{ *readers }

func (r versionReaders) await(version uint64) error {
	if _, err := fmt.Fprintln(r.stdin, version); err != nil {
		return err
	}
	return r.readers.await(strconv.FormatUint(version, 10))
}

// asVersionReader turns this process into the watchers when it was started as them.
func asVersionReader() {
	asReaders(pushEnv, readVersions)
}

// progress knows which version each watcher has.
type progress struct {
	mu     sync.Mutex
	at     []uint64
	some   []bool // got any frame at all
	target uint64
	asked  bool
}

func (p *progress) got(i int, version uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at[i], p.some[i] = version, true
	p.answer()
}

func (p *progress) ask(version uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target, p.asked = version, true
	p.answer()
}

func (p *progress) answer() {
	if !p.asked {
		return
	}
	for i := range p.at {
		if !p.some[i] || p.at[i] < p.target {
			return
		}
	}
	p.asked = false
	fmt.Println(p.target)
}

func readVersions(args string) error {
	var addr, protocol string
	var n int
	delta := false
	if _, err := fmt.Sscan(args, &addr, &n, &protocol); err != nil {
		return err
	}
	if protocol == "dodona" {
		if _, err := fmt.Sscan(args, &addr, &n, &protocol, &delta); err != nil {
			return err
		}
	}
	all := &progress{at: make([]uint64, n), some: make([]bool, n)}
	for i := range n {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithStaticStreamWindowSize(1<<20), grpc.WithStaticConnWindowSize(16<<20),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(bytesCodec{encoding.GetCodecV2("proto")}), grpc.MaxCallRecvMsgSize(64<<20)))
		if err != nil {
			return err
		}
		if err := watchVersions(conn, protocol, delta, func(version uint64) { all.got(i, version) }); err != nil {
			return err
		}
	}
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		version, err := strconv.ParseUint(commands.Text(), 10, 64)
		if err != nil {
			return err
		}
		all.ask(version)
	}
	return nil
}

// watchVersions reads one stream in the background. Of each frame it looks at the
// version, and at what an acknowledgement needs.
func watchVersions(conn *grpc.ClientConn, protocol string, delta bool, got func(version uint64)) error {
	method := map[string]string{
		"dodona": donav1.ControlPlane_WatchConfig_FullMethodName,
		"linear": endpointservice.EndpointDiscoveryService_DeltaEndpoints_FullMethodName,
		"sotw":   endpointservice.EndpointDiscoveryService_StreamEndpoints_FullMethodName,
	}[protocol]
	stream, err := conn.NewStream(context.Background(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: protocol != "dodona"}, method)
	if err != nil {
		return err
	}
	node := &corev3.Node{Id: "watcher", Cluster: "bench"}
	switch protocol {
	case "dodona":
		if err := stream.SendMsg(&donav1.WatchConfigRequest{Service: "checkout", AcceptDelta: delta}); err != nil {
			return err
		}
		if err := stream.CloseSend(); err != nil {
			return err
		}
	case "linear":
		if err := stream.SendMsg(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: typeURL}); err != nil {
			return err
		}
	case "sotw":
		if err := stream.SendMsg(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: typeURL}); err != nil {
			return err
		}
	}
	go func() {
		for {
			var frame []byte
			if err := stream.RecvMsg(&frame); err != nil {
				return
			}
			switch protocol {
			case "dodona":
				version, _ := field(frame, 2)
				got(version)
			case "linear":
				_, text := field(frame, 1)
				_, nonce := field(frame, 5)
				version, _ := strconv.ParseUint(text, 10, 64)
				got(version)
				_ = stream.SendMsg(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce})
			case "sotw":
				_, text := field(frame, 1)
				_, nonce := field(frame, 5)
				version, _ := strconv.ParseUint(text, 10, 64)
				got(version)
				_ = stream.SendMsg(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce, VersionInfo: text})
			}
		}
	}()
	return nil
}

// field finds a field of an encoded message without decoding the rest.
func field(b []byte, want protowire.Number) (number uint64, text string) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return 0, ""
		}
		b = b[n:]
		if num == want && typ == protowire.VarintType {
			v, _ := protowire.ConsumeVarint(b)
			return v, ""
		}
		if num == want && typ == protowire.BytesType {
			v, _ := protowire.ConsumeBytes(b)
			return 0, string(v)
		}
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return 0, ""
		}
		b = b[n:]
	}
	return 0, ""
}

// bytesCodec gives received messages as they are.
type bytesCodec struct{ encoding.CodecV2 }

func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}
