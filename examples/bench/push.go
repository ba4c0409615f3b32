package main

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"

	"github.com/dodona-project/dodona/host/snapshot"
)

const (
	// quiet is how long nothing changes before a push is measured, so that it goes
	// out at once.
	quiet = 2100 * time.Millisecond

	burstChanges = 200
	burstEvery   = time.Millisecond
)

// pusher is a control plane with 1,000 watchers in another process.
type pusher struct {
	change  func(n int) (version uint64, err error) // changes one endpoint
	readers versionReaders
	close   func()
	each    float64 // bytes of heap that an idle watcher takes
}

// push measures one change, from before it is made until every watcher has it:
// µs of this process's CPU a watcher, and milliseconds.
func (p *pusher) push(n int) (each, ms float64, err error) {
	before, begin := cpu(), time.Now()
	version, err := p.change(n)
	if err == nil {
		err = p.readers.await(version)
	}
	return float64(cpu()-before) / float64(time.Microsecond) / watchers, float64(time.Since(begin)) / float64(time.Millisecond), err
}

// burst makes 200 changes, one a millisecond: ms of this process's CPU in all, and
// milliseconds from the last one until every watcher has it.
func (p *pusher) burst(n int) (all, ms float64, err error) {
	before := cpu()
	var version uint64
	next := time.Now()
	for i := range burstChanges {
		if version, err = p.change(n*burstChanges + i); err != nil {
			return 0, 0, err
		}
		next = next.Add(burstEvery)
		time.Sleep(time.Until(next))
	}
	last := time.Now()
	err = p.readers.await(version)
	return float64(cpu()-before) / float64(time.Millisecond), float64(time.Since(last)) / float64(time.Millisecond), err
}

// side is one way to push, measured by turns with the others.
type side struct {
	name string
	open func(watchers, resources, each int) (*pusher, error) // each: endpoints of a resource, where there are such
}

var (
	oursDelta = side{"ours", func(w, n, each int) (*pusher, error) { return newDodona(w, n*each, true) }}
	oursFull  = side{"ours, whole snapshots", func(w, n, each int) (*pusher, error) { return newDodona(w, n*each, false) }}
	peerDelta = side{"go-control-plane, linear cache, delta", func(w, n, each int) (*pusher, error) { return newLinear(w, n, each) }}
	peerTuned = side{"the same at our transport options", func(w, n, each int) (*pusher, error) {
		return newLinear(w, n, each, snapshot.ServerOptions()[1:]...)
	}}
	peerFull = side{"go-control-plane, snapshot cache", newSnapshots}
)

type pushed struct{ cpu, ms, burstCPU, burstMS float64 }

// measurePushes opens all sides and takes turns; bursts only when asked.
func measurePushes(resources, each int, bursts bool, sides ...side) (medians []pushed, err error) {
	pushers := make([]*pusher, len(sides))
	for i, s := range sides {
		if pushers[i], err = s.open(watchers, resources, each); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		defer pushers[i].close()
	}
	all := make([][4][]float64, len(sides))
	for n := range repeats {
		time.Sleep(quiet)
		for i, p := range pushers {
			c, ms, err := p.push(n)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", sides[i].name, err)
			}
			all[i][0], all[i][1] = append(all[i][0], c), append(all[i][1], ms)
		}
		if !bursts {
			continue
		}
		for i, p := range pushers {
			time.Sleep(quiet)
			c, ms, err := p.burst(n)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", sides[i].name, err)
			}
			all[i][2], all[i][3] = append(all[i][2], c), append(all[i][3], ms)
		}
	}
	medians = make([]pushed, len(sides))
	for i, a := range all {
		medians[i] = pushed{cpu: median(a[0]), ms: median(a[1])}
		if bursts {
			medians[i].burstCPU, medians[i].burstMS = median(a[2]), median(a[3])
		}
	}
	return medians, nil
}

// idleWatchers is at how many the memory of a watcher is measured.
const idleWatchers = 10_000

// memoryRows measures what an idle watcher takes, each with a connection of its own.
func memoryRows() (rows []row, err error) {
	const unit = "B of heap a watcher"
	heap := func(s side, resources int) (float64, error) {
		p, err := s.open(idleWatchers, resources, 1)
		if err != nil {
			return 0, fmt.Errorf("%d watchers of %s: %w", idleWatchers, s.name, err)
		}
		defer p.close()
		return p.each, nil
	}
	var small float64
	for _, c := range []struct {
		resources int
		limit     float64
	}{{200, 0.35}, {2000, 0.1}} {
		ours, err := heap(oursDelta, c.resources)
		if err != nil {
			return nil, err
		}
		peer, err := heap(peerDelta, c.resources)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row{fmt.Sprintf("one of %d idle watchers of %d resources", idleWatchers, c.resources), ours, peer, unit, peerDelta.name, c.limit, false, nil})
		if small == 0 {
			small = ours
		} else {
			rows = append(rows, row{"the same, beside one of 200", ours, small, unit, "ours at 200", 1.05, false, nil})
		}
	}
	return rows, nil
}

// pushRows measures what a change and a burst cost.
func pushRows() (rows []row, err error) {
	const cpuUnit, msUnit = "µs CPU a watcher", "ms until all have it"
	m, err := measurePushes(200, 10, true, oursDelta, peerDelta, peerTuned)
	if err != nil {
		return nil, err
	}
	ours, peer, tuned := m[0], m[1], m[2]
	large := ours
	rows = append(rows,
		row{"one of 2,000 endpoints changes", ours.cpu, peer.cpu, cpuUnit, peerDelta.name + ", 200 × 10", 0.4, false, nil},
		row{"the same", ours.cpu, tuned.cpu, cpuUnit, peerTuned.name, 0.55, false, nil},
		row{"the same", ours.ms, peer.ms, msUnit, peerDelta.name, 0, false, nil},
		row{"a burst of 200 changes at 1 kHz", ours.burstCPU, peer.burstCPU, "ms CPU", peerDelta.name, 0.6, false, nil},
		row{"the same", ours.burstMS, peer.burstMS, "ms from the last until all have it", peerDelta.name, 0.6, false, nil},
	)
	if m, err = measurePushes(2000, 1, false, oursDelta, peerDelta); err != nil {
		return nil, err
	}
	rows = append(rows,
		row{"one of 2,000 resources changes", m[0].cpu, m[1].cpu, cpuUnit, peerDelta.name + ", 2,000 × 1", 0.12, false, nil})
	if m, err = measurePushes(200, 1, false, oursDelta); err != nil {
		return nil, err
	}
	rows = append(rows,
		row{"one of 2,000 endpoints changes, beside one of 200", large.cpu, m[0].cpu, cpuUnit, "ours at 200", 1.25, false, nil})
	if m, err = measurePushes(200, 10, false, oursFull, peerFull); err != nil {
		return nil, err
	}
	return append(rows,
		row{"one of 2,000 endpoints changes, whole snapshots", m[0].cpu, m[1].cpu, cpuUnit, peerFull.name, 0.08, false, nil},
		row{"the same", m[0].ms, m[1].ms, msUnit, peerFull.name, 0, false, nil},
		row{"deltas beside whole snapshots, 2,000 endpoints", ours.cpu, m[0].cpu, cpuUnit, oursFull.name, 0, false, nil},
		row{"the same", ours.ms, m[0].ms, msUnit, oursFull.name, 0, false, nil}), nil
}

func newDodona(watchers, endpoints int, delta bool) (*pusher, error) {
	d, err := newDeployment(endpoints)
	if err != nil {
		return nil, err
	}
	version := func() (uint64, error) {
		f, err := d.newest()
		if err != nil {
			return 0, err
		}
		return f.Version, nil
	}
	p, err := startPusher(d.server(), watchers, fmt.Sprint("dodona ", delta), version)
	if err != nil {
		return nil, err
	}
	p.change = func(n int) (uint64, error) {
		if err := d.put(endpoints/2, 1+n%50_000); err != nil {
			return 0, err
		}
		return d.version()
	}
	end := p.close
	p.close = func() { end(); d.close() }
	return p, nil
}

const typeURL = resource.EndpointType

func assignment(i, each, port int) *endpointv3.ClusterLoadAssignment {
	lb := &endpointv3.LocalityLbEndpoints{Locality: &corev3.Locality{Region: "eu-west", Zone: "eu-west-1a"}}
	for j := range each {
		at := uint32(8080)
		if j == 0 {
			at = uint32(port)
		}
		lb.LbEndpoints = append(lb.LbEndpoints, &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address: fmt.Sprintf("10.%d.%d.%d", i/250, i%250, j+1), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: at}}}}}}})
	}
	return &endpointv3.ClusterLoadAssignment{ClusterName: fmt.Sprintf("checkout-%05d", i), Endpoints: []*endpointv3.LocalityLbEndpoints{lb}}
}

func newLinear(watchers, resources, each int, options ...grpc.ServerOption) (*pusher, error) {
	initial := map[string]types.Resource{}
	for i := range resources {
		a := assignment(i, each, 8080)
		initial[a.ClusterName] = a
	}
	cache := cachev3.NewLinearCache(typeURL, cachev3.WithInitialResources(initial))
	version := uint64(0)
	server := grpc.NewServer(append(options, grpc.MaxConcurrentStreams(250))...)
	endpointservice.RegisterEndpointDiscoveryServiceServer(server, serverv3.NewServer(context.Background(), cache, nil))
	p, err := startPusher(server, watchers, "linear", func() (uint64, error) { return 0, nil })
	if err != nil {
		return nil, err
	}
	p.change = func(n int) (uint64, error) {
		a := assignment(resources/2, each, 1+n%50_000)
		version++
		return version, cache.UpdateResource(a.ClusterName, a)
	}
	return p, nil
}

func newSnapshots(watchers, resources, each int) (*pusher, error) {
	cache := cachev3.NewSnapshotCache(false, cachev3.IDHash{}, nil)
	all := make([]types.Resource, resources)
	for i := range all {
		all[i] = assignment(i, each, 8080)
	}
	version := uint64(0)
	set := func(n int) (uint64, error) {
		version++
		all[resources/2] = assignment(resources/2, each, 1+n%50_000)
		s, err := cachev3.NewSnapshot(strconv.FormatUint(version, 10), map[resource.Type][]types.Resource{typeURL: all})
		if err != nil {
			return 0, err
		}
		return version, cache.SetSnapshot(context.Background(), "watcher", s)
	}
	if _, err := set(0); err != nil {
		return nil, err
	}
	server := grpc.NewServer(grpc.MaxConcurrentStreams(250))
	endpointservice.RegisterEndpointDiscoveryServiceServer(server, serverv3.NewServer(context.Background(), cache, nil))
	p, err := startPusher(server, watchers, "sotw", func() (uint64, error) { return version, nil })
	if err != nil {
		return nil, err
	}
	p.change = set
	return p, nil
}

// startPusher serves, starts the watchers, waits until all have the first version
// and weighs them.
func startPusher(server *grpc.Server, watchers int, protocol string, version func() (uint64, error)) (*pusher, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() { _ = server.Serve(listener) }()
	first, err := version()
	if err != nil {
		server.Stop()
		return nil, err
	}
	before := settledHeap()
	process, err := startReaders(pushEnv, fmt.Sprintf("%s %d %s", listener.Addr(), watchers, protocol))
	readers := versionReaders{process}
	if err == nil {
		err = readers.await(first)
	}
	if err != nil {
		server.Stop()
		return nil, err
	}
	return &pusher{
		readers: readers, each: float64(heapInUse()-before) / float64(watchers),
		close: func() { readers.end(); server.Stop() },
	}, nil
}

// settledHeap waits until what an earlier measurement left behind is gone: until the
// heap has not become smaller for a second.
func settledHeap() int64 {
	least, same := heapInUse(), 0
	for range 300 {
		time.Sleep(100 * time.Millisecond)
		now := heapInUse()
		if same++; now < least-100_000 {
			same = 0
		}
		if least = min(least, now); same == 10 {
			break
		}
	}
	return least
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
