package session

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/dodona-project/dodona/plugins/probe"
	"github.com/dodona-project/dodona/proto/prototest"
)

// counted is quick, and counts.
type counted struct {
	quick
	checks atomic.Int64
}

func (c *counted) Check(ctx context.Context, plugin string, config *structpb.Struct, req *pluginv1.CheckRequest) (probe.Observation, error) {
	c.checks.Add(1)
	return c.quick.Check(ctx, plugin, config, req)
}

// TestUnknownEnums: a task with a number in it that this checker does not know is not
// begun, whatever enum it is of, and its observation, which changes no health, says so.
// Every answer of the service is looked through, so one that gets another enum needs a
// case here or there.
func TestUnknownEnums(t *testing.T) {
	task := func() *controlplanev1.CheckTask {
		return &controlplanev1.CheckTask{
			TaskId: "t", LeaseToken: "l", ProxyId: "p", Level: controlplanev1.CheckLevel_CHECK_LEVEL_BASIC,
			Proxy:    &controlplanev1.Proxy{ProxyId: "p", Protocol: controlplanev1.Proxy_PROTOCOL_HTTP, Host: "192.0.2.1", Port: 1, Health: controlplanev1.Health_HEALTH_AVAILABLE},
			Deadline: timestamppb.New(time.Now().Add(time.Minute)), Timeout: durationpb.New(time.Second),
		}
	}
	p := &counted{}
	s := New(Config{Prober: p, MaxInFlight: 1})
	if o := s.check(t.Context(), task()); o.Result != controlplanev1.HealthObservation_RESULT_SUCCESS || p.checks.Load() != 1 {
		t.Fatalf("a task that is known: %v after %d checks", o, p.checks.Load())
	}
	methods := controlplanev1.File_controlplane_v1_controlplane_proto.Services().ByName("CheckerControlPlane").Methods()
	tried := 0
	for i := range methods.Len() {
		answer := methods.Get(i).Output()
		for _, path := range prototest.Enums(answer) {
			if answer.Name() != "CheckTask" {
				t.Errorf("%s.%s: no case shows what becomes of a number in it that is not known", answer.Name(), path)
				continue
			}
			for _, n := range []int32{77, -1} {
				bad := task()
				path.Set(bad, 0)
				before := proto.CloneOf(bad)
				path.Set(bad, protoreflect.EnumNumber(n))
				if proto.Equal(before, bad) {
					t.Fatalf("%s is not set", path)
				}
				o := s.check(t.Context(), bad)
				if o.Result != controlplanev1.HealthObservation_RESULT_INCONCLUSIVE || o.Attempts != 0 || p.checks.Load() != 1 ||
					!strings.Contains(o.Detail, fmt.Sprintf("%s is %d", path, n)) || o.TaskId != "t" || o.LeaseToken != "l" {
					t.Errorf("%s of %d: %v after %d checks", path, n, o, p.checks.Load())
				}
				tried++
			}
		}
	}
	if tried < 6 {
		t.Errorf("only %d were tried", tried)
	}
}
