package api_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/dodona-project/dodona/host/store"
	"github.com/dodona-project/dodona/host/store/redis"
	"github.com/dodona-project/dodona/host/store/redis/redistest"
	"github.com/dodona-project/dodona/proto/prototest"
)

// TestUnknownEnums: a request with a number in it that this host does not know is
// refused and nothing is written, whatever enum it is of. Every request of the egress
// plane is looked through, so one that gets another enum needs a case here.
func TestUnknownEnums(t *testing.T) { unknownEnums(t, newFleet(t)) }

func TestUnknownEnumsOverRedis(t *testing.T) {
	unknownEnums(t, newFleet(t, onStore(overRedis(t))))
}

func overRedis(t *testing.T) store.Store {
	t.Helper()
	target, err := redis.ParseURL("redis://" + redistest.Start(t, redistest.Safe...).Addr)
	fatal(t, err)
	target.Cluster = "api"
	st, err := redis.Open(t.Context(), redis.Options{Target: target, Dir: filepath.Join(t.TempDir(), "redis"), CallTimeout: 10 * time.Second})
	fatal(t, err)
	t.Cleanup(func() { _ = st.Close() })
	redistest.Await(t, "the store is ready", func() bool { return st.Info().State == "ready" })
	return st
}

func unknownEnums(t *testing.T, f *fleet) {
	f.checked(1)
	_, err := f.checker().RegisterChecker(ctx(t), checkerOf(nil))
	fatal(t, err)
	task, err := f.tasks(ctx(t), "i1").Recv()
	fatal(t, err)
	f.available(1)
	// Of each request that has an enum, one that is taken as it is, and its call.
	cases := map[string]struct {
		request proto.Message
		call    func(proto.Message) error
	}{
		"ReportOutcomes": {
			&controlplanev1.OutcomeBatch{WorkerId: "w1", SessionId: f.session, Sequence: 1, Outcomes: []*controlplanev1.Outcome{
				{Routing: "all", Stage: controlplanev1.Outcome_STAGE_DIAL}}},
			func(m proto.Message) error {
				s, err := f.workers.ReportOutcomes(ctx(t))
				fatal(t, err)
				_ = s.Send(m.(*controlplanev1.OutcomeBatch))
				_, err = s.CloseAndRecv()
				return err
			},
		},
		"RegisterChecker": {checkerOf(nil), func(m proto.Message) error {
			_, err := f.checker().RegisterChecker(ctx(t), m.(*controlplanev1.RegisterCheckerRequest))
			return err
		}},
		"StreamCheckTasks": {
			&controlplanev1.StreamCheckTasksRequest{CheckerId: "c1", InstanceId: "i1", Levels: []controlplanev1.CheckLevel{basic}},
			func(m proto.Message) error {
				s, err := f.checker().StreamCheckTasks(ctx(t), m.(*controlplanev1.StreamCheckTasksRequest))
				fatal(t, err)
				if m.(*controlplanev1.StreamCheckTasksRequest).Levels[0] == basic {
					return nil // nothing comes: the one task is held
				}
				_, err = s.Recv()
				return err
			},
		},
		"ReportObservations": {
			&controlplanev1.ReportObservationsRequest{CheckerId: "c1", Observations: []*controlplanev1.HealthObservation{seen(task, sick)}},
			func(m proto.Message) error {
				_, err := f.checker().ReportObservations(ctx(t), m.(*controlplanev1.ReportObservationsRequest))
				return err
			},
		},
		"Extract": {
			&controlplanev1.ExtractRequest{IdempotencyKey: "k", Upstream: "dc", Count: 1, Protocol: controlplanev1.Proxy_PROTOCOL_HTTP},
			func(m proto.Message) error {
				_, err := f.pools.Extract(ctx(t), m.(*controlplanev1.ExtractRequest))
				return err
			},
		},
	}
	before := f.written()
	tried := 0
	services := controlplanev1.File_controlplane_v1_controlplane_proto.Services()
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			method := services.Get(i).Methods().Get(j)
			for _, path := range prototest.Enums(method.Input()) {
				c, ok := cases[string(method.Name())]
				if !ok {
					t.Errorf("%s takes %s: no case shows what becomes of a number in it that is not known", method.Name(), path)
					continue
				}
				for _, n := range []protoreflect.EnumNumber{77, -1} {
					bad := proto.Clone(c.request)
					path.Set(bad, n)
					err := c.call(bad)
					field := string(path[len(path)-1].Name())
					if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), field) {
						t.Errorf("%s with %s of %d: %v, want INVALID_ARGUMENT that names %s", method.Name(), path, n, err, field)
					}
					tried++
				}
			}
		}
	}
	if tried < 16 {
		t.Errorf("only %d were tried", tried)
	}
	if f.written() != before {
		t.Error("a refused one stored something")
	}
	for name, c := range cases { // they were refused for that number alone
		if err := c.call(c.request); err != nil {
			t.Errorf("%s as it should be: %v", name, err)
		}
	}
}
