package worker_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"github.com/dodona-project/dodona/sdk/worker"
	"github.com/dodona-project/dodona/sdk/worker/digest"
)

func (d *deployment) ackedVersion() (v uint64) {
	d.with(func() { v = d.acked.GetVersion() })
	return v
}

func (d *deployment) count(of func() int) (n int) {
	d.with(func() { n = of() })
	return n
}

// A day with a host that refreshes, and nothing happens: one session, one stream, every
// snapshot acknowledged, reports in time.
func TestADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := deploy(t, hostA)
		d.give([]*controlplanev1.Routing{routing("all", "eu")}, proxies("eu", 3))
		w := d.start(t, func(c *worker.Config) { c.Target = hostA })
		if w.State() != worker.Starting || w.View() != nil {
			t.Error("it serves before it has a snapshot")
		}
		after(t, time.Second, "a snapshot is used", func() bool { return w.State() == worker.Serving })
		day := 24 * time.Hour
		if raceEnabled {
			day /= 8 // a whole one takes most of a minute
		}
		time.Sleep(day)
		synctest.Wait()
		d.with(func() {
			if len(d.registers) != 1 || len(d.watches) != 1 {
				t.Errorf("%d registrations, %d watches", len(d.registers), len(d.watches))
			}
			if uint64(len(d.acks)) != d.version || w.View().Version() != d.version || d.version < uint64(day/(validity/2)) {
				t.Errorf("%d acknowledgements of %d versions, in use is %d", len(d.acks), d.version, w.View().Version())
			}
			if n := len(d.reports); n < int(day/interval)-len(d.acks) || n > int(day/interval)+2*len(d.acks) {
				t.Errorf("%d reports", n)
			}
		})
		if got := w.seen(); got != "serving" {
			t.Errorf("states %q", got)
		}
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestRegistersWithWhatItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := deploy(t, hostA)
		w := d.start(t, func(c *worker.Config) { c.Target, c.MaxConnections, c.Build = hostA, 77, "v1" })
		after(t, time.Second, "it serves", func() bool { return w.State() == worker.Serving })
		d.with(func() {
			r := d.registers[0]
			if r.GetClusterId() != cluster || r.GetWorkerId() != "worker-1" || r.GetInstanceId() != "instance-1" || r.GetZone() != "eu-1" ||
				r.GetSupportedProtocolVersion() != 1 || r.GetMaxConnections() != 77 || r.GetBuild() != "v1" {
				t.Errorf("registered as %v", r)
			}
			if a := d.watches[0]; a.GetLastVersion() != 0 || !a.GetAcceptDelta() || a.GetSessionId() != "session-1" {
				t.Errorf("watches with %v", a)
			}
		})
	})
}

// What is wrong with a snapshot has it refused: the old one stays, the refusal is told
// with its reason, and the stream is opened again for a full one.
func TestRefusedSnapshots(t *testing.T) {
	rehash := func(s *controlplanev1.WorkerSnapshot) {
		sum := digest.OfSnapshot(s)
		s.Checksum = sum[:]
	}
	for _, c := range []struct {
		name  string
		spoil func(*controlplanev1.WorkerSnapshot)
		why   string
	}{
		{"another cluster", func(s *controlplanev1.WorkerSnapshot) { s.ClusterId = "test" }, "cluster_id"},
		{"checksum", func(s *controlplanev1.WorkerSnapshot) { s.Checksum = make([]byte, 32) }, "checksum"},
		{"no checksum", func(s *controlplanev1.WorkerSnapshot) { s.Checksum = nil }, "checksum"},
		{"damaged content", func(s *controlplanev1.WorkerSnapshot) { s.Proxies[0].Port++ }, "checksum"},
		{"no validity", func(s *controlplanev1.WorkerSnapshot) { s.ValidUntil = nil }, "valid_until"},
		{"malformed validity", func(s *controlplanev1.WorkerSnapshot) { s.ValidUntil = &timestamppb.Timestamp{Seconds: 1 << 60} }, "valid_until"},
		{"past validity", func(s *controlplanev1.WorkerSnapshot) { s.ValidUntil = s.GeneratedAt }, "valid_until"},
		{"no time of making", func(s *controlplanev1.WorkerSnapshot) { s.GeneratedAt = nil }, "generated_at"},
		{"a gap", func(s *controlplanev1.WorkerSnapshot) { s.Version++ }, "version is"},
		{"the same version", func(s *controlplanev1.WorkerSnapshot) { s.Version-- }, "version is"},
		{"version 0", func(s *controlplanev1.WorkerSnapshot) { s.Version = 0 }, "version is 0"},
		{"an older epoch", func(s *controlplanev1.WorkerSnapshot) { s.OwnershipEpoch-- }, "ownership_epoch"},
		{"unknown protocol", func(s *controlplanev1.WorkerSnapshot) { s.Proxies[0].Protocol = 99; rehash(s) }, "protocol is 99"},
		{"no protocol", func(s *controlplanev1.WorkerSnapshot) { s.Proxies[0].Protocol = 0; rehash(s) }, "protocol is 0"},
		{"unknown health", func(s *controlplanev1.WorkerSnapshot) { s.Proxies[0].Health = 99; rehash(s) }, "health is 99"},
		{"unknown on_unavailable", func(s *controlplanev1.WorkerSnapshot) { s.Routings[0].OnUnavailable = 99; rehash(s) }, "on_unavailable is 99"},
		{"no on_unavailable", func(s *controlplanev1.WorkerSnapshot) { s.Routings[0].OnUnavailable = 0; rehash(s) }, "on_unavailable is 0"},
		{"unknown resolve", func(s *controlplanev1.WorkerSnapshot) { s.Routings[0].Resolve = 99; rehash(s) }, "resolve is 99"},
		{"unknown stickiness", func(s *controlplanev1.WorkerSnapshot) {
			s.Routings[0].Stickiness = &controlplanev1.Stickiness{Mode: 99}
			rehash(s)
		}, "stickiness.mode is 99"},
		{"unknown algorithm", func(s *controlplanev1.WorkerSnapshot) { s.Routings[0].Plan = &donav1.Plan{Algorithm: 99}; rehash(s) }, "algorithm"},
		{"no algorithm", func(s *controlplanev1.WorkerSnapshot) { s.Routings[0].Plan = &donav1.Plan{}; rehash(s) }, "algorithm"},
		{"a broken policy", func(s *controlplanev1.WorkerSnapshot) {
			s.Routings[0].TargetPolicy = &controlplanev1.TargetPolicy{DenyCidrs: []string{"x"}}
			rehash(s)
		}, "deny_cidrs[0]"},
		{"a broken match", func(s *controlplanev1.WorkerSnapshot) {
			s.Routings[0].Match = &controlplanev1.RoutingMatch{Hosts: []string{"a b"}}
			rehash(s)
		}, "match.hosts[0]"},
		{"a proxy twice", func(s *controlplanev1.WorkerSnapshot) { s.Proxies = append(s.Proxies, s.Proxies[0]); rehash(s) }, "twice"},
		{"a routing twice", func(s *controlplanev1.WorkerSnapshot) { s.Routings = append(s.Routings, s.Routings[0]); rehash(s) }, "twice"},
		{"malformed usable_until", func(s *controlplanev1.WorkerSnapshot) {
			s.Proxies[0].UsableUntil = &timestamppb.Timestamp{Nanos: -1}
			rehash(s)
		}, "usable_until"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := deploy(t, hostA)
				d.with(func() { d.epoch = 5 })
				d.give([]*controlplanev1.Routing{routing("all", "eu")}, proxies("eu", 2))
				w := d.start(t, func(c *worker.Config) { c.Target = hostA })
				after(t, time.Second, "it serves", func() bool { return d.ackedVersion() == 1 })
				held := w.View()
				d.with(func() {
					d.spoil = func(u *controlplanev1.SnapshotUpdate) {
						c.spoil(u.GetFull())
						d.spoil = nil
					}
				})
				d.push()
				after(t, time.Minute, "the next good one is used", func() bool { return d.ackedVersion() > 2 })
				d.with(func() {
					bad := d.acks[1]
					if c.name == "no checksum" || c.name == "version 0" { // it names no snapshot, so there is nothing to refuse
						if !bad.GetAccepted() {
							t.Errorf("acknowledged with %v", bad)
						}
					} else if bad.GetAccepted() || !strings.Contains(bad.GetReason(), c.why) || len(bad.GetReason()) > 256 {
						t.Errorf("acknowledged with %v, want a refusal for %s", bad, c.why)
					}
					if n := len(d.watches); n != 2 || d.watches[1].GetLastVersion() != 0 {
						t.Errorf("%d watches, the last with version %d", n, d.watches[n-1].GetLastVersion())
					}
					if len(d.registers) != 1 {
						t.Errorf("%d registrations", len(d.registers))
					}
				})
				if w.View() == held || w.Stats().Refused != 1 {
					t.Errorf("%d refused", w.Stats().Refused)
				}
			})
		})
	}
}

// A snapshot that is refused leaves what was there.
func TestTheOldSnapshotStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := deploy(t, hostA)
		d.give([]*controlplanev1.Routing{routing("all", "eu")}, proxies("eu", 2))
		w := d.start(t, func(c *worker.Config) { c.Target = hostA })
		after(t, time.Second, "it serves", func() bool { return w.State() == worker.Serving })
		held := w.View()
		d.with(func() { d.spoil = func(u *controlplanev1.SnapshotUpdate) { u.GetFull().Checksum = make([]byte, 32) } })
		d.push()
		time.Sleep(validity - time.Second)
		if w.View() != held || w.State() != worker.Serving {
			t.Errorf("in use is %d, %v", w.View().Version(), w.State())
		}
		n := d.count(func() int { return len(d.reports) })
		time.Sleep(20 * time.Second)
		if more := d.count(func() int { return len(d.reports) }); more != n {
			t.Errorf("%d reports while the fence is shut", more-n)
		}
	})
}

func TestDeltas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := deploy(t, hostA)
		d.with(func() { d.deltas = true })
		list := proxies("eu", 4)
		list[0].SecretRef, list[0].CredentialVersion = "env:EU", 1
		d.give([]*controlplanev1.Routing{routing("all", "eu")}, list)
		d.with(func() {
			d.credentials = []*controlplanev1.Credential{{SecretRef: "env:EU", CredentialVersion: 1, Username: "u", Password: "p"}}
		})
		w := d.start(t, func(c *worker.Config) { c.Target = hostA })
		after(t, time.Second, "it serves", func() bool { return d.ackedVersion() == 1 })
		step := func(what string, change func()) {
			t.Helper()
			before := d.ackedVersion()
			d.with(change)
			d.push()
			after(t, time.Second, what, func() bool { return d.ackedVersion() == before+1 })
			d.with(func() {
				if a := d.acks[len(d.acks)-1]; !a.GetAccepted() || len(d.watches) != 1 {
					t.Errorf("%s: %v, %d watches", what, a, len(d.watches))
				}
			})
		}
		step("nothing changed", func() {})
		step("a proxy less, one more, one changed", func() {
			d.proxies = append(proxies("eu", 3)[1:], proxies("us", 1)...)
			d.proxies[0].Capacity = 99
			d.credentials = nil
		})
		if w.View().Proxy("eu-000") != nil || w.View().Proxy("us-000") == nil || w.View().Proxies() != 3 {
			t.Errorf("%d proxies", w.View().Proxies())
		}
		step("routings", func() { d.routings = []*controlplanev1.Routing{routing("first", "us"), routing("all", "eu")} })
		step("their order", func() { d.routings = []*controlplanev1.Routing{routing("all", "eu"), routing("first", "us")} })
		step("a credential's next version", func() {
			d.proxies[0].SecretRef, d.proxies[0].CredentialVersion = "env:EU", 2
			d.credentials = []*controlplanev1.Credential{{SecretRef: "env:EU", CredentialVersion: 2, Username: "u", Password: "q"}}
		})
		if p := w.View().Proxy("eu-001"); p.Via.Password != "q" || p.CredentialVersion != 2 {
			t.Errorf("the credential is %d", p.CredentialVersion)
		}

		// One that does not fit is dropped without a word, and a full one is asked for.
		for name, spoil := range map[string]func(*controlplanev1.SnapshotDelta){
			"base":     func(d *controlplanev1.SnapshotDelta) { d.BaseVersion-- },
			"checksum": func(d *controlplanev1.SnapshotDelta) { d.Checksum = make([]byte, 32) },
			"removes":  func(d *controlplanev1.SnapshotDelta) { d.RemovedProxyIds = append(d.RemovedProxyIds, "nobody") },
			"keys": func(d *controlplanev1.SnapshotDelta) {
				d.RemovedCredentials = append(d.RemovedCredentials, &controlplanev1.CredentialRef{SecretRef: "x"})
			},
		} {
			acks, before := d.count(func() int { return len(d.acks) }), d.ackedVersion()
			watches := d.count(func() int { return len(d.watches) })
			d.with(func() {
				d.spoil = func(u *controlplanev1.SnapshotUpdate) { spoil(u.GetDelta()); d.spoil = nil }
			})
			d.push()
			after(t, time.Minute, name, func() bool { return d.ackedVersion() > before })
			d.with(func() {
				if len(d.acks) != acks+1 || len(d.watches) != watches+1 || d.watches[watches].GetLastVersion() != 0 {
					t.Errorf("%s: %d acknowledgements more, watches with %v", name, len(d.acks)-acks, d.watches[len(d.watches)-1])
				}
			})
		}
	})
}

// The host's clock does not count: an hour ahead or behind, a snapshot is valid as long as
// the host says that it is.
func TestClocksNeedNotAgree(t *testing.T) {
	for _, skew := range []time.Duration{-time.Hour, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			d := deploy(t, hostA)
			list := proxies("eu", 1)
			list[0].UsableUntil = timestamppb.New(time.Now().Add(skew + 20*time.Second))
			d.with(func() { d.stamp = func() time.Time { return time.Now().Add(skew) } })
			d.give([]*controlplanev1.Routing{routing("all", "eu")}, list)
			w := d.start(t, func(c *worker.Config) { c.Target = hostA })
			after(t, time.Second, "it serves", func() bool { return w.State() == worker.Serving })
			d.down(hostA)
			r := w.View().Route(&worker.Request{})
			until(t, 20*time.Second, func() bool { _, err := pick(w, r); return err != nil })
			until(t, validity-20*time.Second, func() bool { return w.State() != worker.Serving })
		})
	}
}

// until checks that a condition begins to hold after so long, a moment less or more.
func until(t *testing.T, want time.Duration, ok func() bool) {
	t.Helper()
	if took := after(t, want+time.Second, "it is over", ok); took < want-50*time.Millisecond || took > want+50*time.Millisecond {
		t.Errorf("it took %v, want %v", took, want)
	}
}

func pick(w *running, r *worker.Routing) (string, error) {
	l, err := w.Pick(r, 0, nil)
	if err != nil {
		return "", err
	}
	defer l.Release()
	return l.Proxy.ID, nil
}

// With the hosts away: nothing is picked once the snapshot is over, then nothing is to be
// accepted, then what runs is to be closed; when they are back, it serves.
func TestHostsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := deploy(t, hostA, hostB)
		d.give([]*controlplanev1.Routing{routing("all", "eu")}, proxies("eu", 1))
		w := d.start(t, nil)
		after(t, time.Second, "it serves", func() bool { return w.State() == worker.Serving })
		r := w.View().Route(&worker.Request{})
		lease, err := w.Pick(r, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		lease.Activate()
		d.down(hostA)
		d.down(hostB)
		until(t, validity, func() bool { return w.State() == worker.Expired })
		if _, err := w.Pick(r, 0, nil); !errors.Is(err, worker.ErrNoView) {
			t.Errorf("picked: %v", err)
		}
		if _, err := w.PickProxy(r, "eu-000"); !errors.Is(err, worker.ErrNoView) {
			t.Errorf("picked: %v", err)
		}
		if w.InUse() != 1 {
			t.Error("what runs is not counted any more")
		}
		until(t, maxStale-validity, func() bool { return w.State() == worker.Stale })
		until(t, margin, func() bool { return w.State() == worker.Ended })
		time.Sleep(time.Hour)
		lease.Release()
		// What is there now begins anew: it lost its data.
		d.with(func() { d.version, d.epoch, d.session = 0, 0, "" })
		d.up(hostA)
		took := after(t, time.Minute, "it serves again", func() bool { return w.State() == worker.Serving })
		if took > 35*time.Second {
			t.Errorf("it took %v", took)
		}
		if _, err := w.Pick(r, 0, nil); err != nil {
			t.Error(err)
		}
		if got := w.seen(); got != "serving expired stale ended serving" {
			t.Errorf("states %q", got)
		}
	})
}

// A host that dies is left for the other one, in the same session.
func TestTheOtherHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := deploy(t, hostA, hostB)
		d.give([]*controlplanev1.Routing{routing("all", "eu")}, proxies("eu", 1))
		w := d.start(t, nil)
		after(t, time.Second, "it serves", func() bool { return d.ackedVersion() == 1 })
		for _, address := range []string{hostA, hostB, hostA, hostB} {
			d.down(address)
			before := d.ackedVersion()
			time.Sleep(5 * time.Second)
			d.push()
			after(t, 5*time.Second, "the other host's snapshot is used", func() bool { return d.ackedVersion() > before })
			d.up(address)
			time.Sleep(time.Minute)
		}
		if n := d.count(func() int { return len(d.registers) }); n != 1 || w.seen() != "serving" {
			t.Errorf("%d registrations, states %q", n, w.seen())
		}
	})
}

// A second process with the same name takes the session over; when it is gone, the first
// one is back.
func TestSessionReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := deploy(t, hostA)
		d.give([]*controlplanev1.Routing{routing("all", "eu")}, proxies("eu", 1))
		w := d.start(t, func(c *worker.Config) { c.Target = hostA })
		after(t, time.Second, "it serves", func() bool { return d.ackedVersion() == 1 })
		time.Sleep(time.Minute)
		d.with(func() { d.session = "another process" })
		d.push()
		after(t, 10*time.Second, "it registers again", func() bool {
			return d.count(func() int { return len(d.registers) }) == 2
		})
		before := d.count(func() int { return int(d.version) })
		after(t, 5*time.Second, "and is in use", func() bool { return d.ackedVersion() >= uint64(before) })
		if w.seen() != "serving" || w.Stats().Sessions != 2 {
			t.Errorf("states %q, %d sessions", w.seen(), w.Stats().Sessions)
		}
	})
}

// A session that keeps being taken away is not taken back without end.
func TestTwoProcessesUnderOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := deploy(t, hostA)
		w := d.start(t, func(c *worker.Config) { c.Target = hostA })
		other := d.start(t, func(c *worker.Config) { c.Target, c.InstanceID = hostA, "instance-2" })
		time.Sleep(10 * time.Minute)
		n := d.count(func() int { return len(d.registers) })
		if n < 4 || n > 400 {
			t.Errorf("%d registrations in 10 minutes", n)
		}
		t.Logf("%d registrations in 10 minutes", n)
		_, _ = w.stop(), other.stop()
	})
}

func TestFatalCodes(t *testing.T) {
	for _, c := range []struct {
		method string
		code   codes.Code
		fatal  bool
	}{
		{"RegisterWorker", codes.FailedPrecondition, true}, {"RegisterWorker", codes.InvalidArgument, true}, {"RegisterWorker", codes.Unauthenticated, true},
		{"RegisterWorker", codes.PermissionDenied, true}, {"RegisterWorker", codes.Unimplemented, true},
		{"RegisterWorker", codes.Unavailable, false}, {"RegisterWorker", codes.Internal, false}, {"RegisterWorker", codes.ResourceExhausted, false}, {"RegisterWorker", codes.Unknown, false},
		{"WatchSnapshots", codes.FailedPrecondition, false}, {"WatchSnapshots", codes.PermissionDenied, true}, {"WatchSnapshots", codes.Unavailable, false}, {"WatchSnapshots", codes.NotFound, false},
		{"AcknowledgeSnapshot", codes.FailedPrecondition, false}, {"AcknowledgeSnapshot", codes.InvalidArgument, true}, {"AcknowledgeSnapshot", codes.Unavailable, false},
		{"ReportRuntime", codes.FailedPrecondition, false}, {"ReportRuntime", codes.Unauthenticated, true}, {"ReportRuntime", codes.Aborted, false}, {"ReportRuntime", codes.Unavailable, false},
		{"ReportOutcomes", codes.FailedPrecondition, false}, {"ReportOutcomes", codes.Unimplemented, true}, {"ReportOutcomes", codes.AlreadyExists, false}, {"ReportOutcomes", codes.Unavailable, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := deploy(t, hostA)
			d.give([]*controlplanev1.Routing{routing("all", "eu")}, proxies("eu", 1))
			left := 4 // errors, then all is well
			d.with(func() {
				d.fail = func(method string) error {
					if method != c.method || left == 0 {
						return nil
					}
					left--
					return status.Error(c.code, "as told")
				}
			})
			w := d.start(t, func(c *worker.Config) { c.Target = hostA })
			for range 100 {
				w.Report(worker.Outcome{ProxyID: "eu-000", Stage: controlplanev1.Outcome_STAGE_DIAL})
			}
			if !c.fatal {
				after(t, 5*time.Minute, c.method+" "+c.code.String()+" is got over", func() bool {
					return d.count(func() int { return min(len(d.reports), len(d.batches)) }) > 0 && w.State() == worker.Serving
				})
				if err := w.stop(); err != nil {
					t.Errorf("%s %v: %v", c.method, c.code, err)
				}
				return
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
			tries := 0
			d.with(func() { tries = 4 - left })
			if tries != 1 {
				t.Errorf("%s %v: tried %d times", c.method, c.code, tries)
			}
			if err := w.stop(); status.Code(err) != c.code {
				t.Errorf("%s %v: it ends with %v", c.method, c.code, err)
			}
		})
	}
}

func TestConfigurationNamesAllErrors(t *testing.T) {
	_, err := worker.New(worker.Config{Target: "nowhere", ClusterID: "a b", WorkerID: "a:b", InstanceID: "", Zone: "-", SafetyMargin: -1})
	if err == nil {
		t.Fatal("it is taken")
	}
	for _, want := range []string{"target", "cluster id", "worker id", "instance id", "zone", "safety margin"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not in: %v", want, err)
		}
	}
}
