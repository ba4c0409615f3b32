package service_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	pluginv1 "github.com/dodona-project/dodona/proto/plugin/v1"
	statev1 "github.com/dodona-project/dodona/proto/state/v1"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/host/service"
	"github.com/dodona-project/dodona/host/store"
)

// planners are the planners of two hosts over one store, in a synctest bubble.
type planners struct {
	*world
	compilers [2]*slowCompiler
	stop      [2]func()
}

// slowCompiler takes its time, and as long as it is told to hang does not answer.
type slowCompiler struct {
	compiler
	hang chan struct{} // nil = it does not hang
}

func (c *slowCompiler) Compile(ctx context.Context, name string, config *structpb.Struct, req *pluginv1.CompileRequest) (*donav1.Plan, time.Duration, error) {
	c.mu.Lock()
	hang := c.hang
	c.mu.Unlock()
	plan, refresh, err := c.compiler.Compile(ctx, name, config, req)
	time.Sleep(200 * time.Millisecond)
	if hang != nil {
		<-hang
	}
	return plan, refresh, err
}

func twoPlanners(t *testing.T, do func(p *planners)) {
	synctest.Test(t, func(t *testing.T) {
		p := &planners{world: newWorld(t)}
		for i := range p.compilers {
			p.compilers[i] = &slowCompiler{compiler: compiler{changed: make(chan struct{}, 1)}}
			p.start(i)
		}
		defer func() {
			for _, stop := range p.stop {
				stop()
			}
			_ = p.store.Close()
		}()
		do(p)
	})
}

// start starts host i, which must not run.
func (p *planners) start(i int) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	plane := service.New(p.store, p.audit, fmt.Sprint("h", i))
	go func() {
		defer close(done)
		_ = service.NewPlanner(plane, p.compilers[i], hclog.NewNullLogger()).Run(ctx)
	}()
	p.stop[i] = func() { cancel(); <-done }
}

func (p *planners) compiles() int { return p.compilers[0].count() + p.compilers[1].count() }

func (p *planners) plan() (plan *statev1.PlanState) {
	p.view(func(tx store.ReadTx) (err error) { plan, err = p.plane.Plan(tx, "web"); return err })
	return plan
}

// Hosts that share a store compile each plan once, whichever of them does.
func TestPlansAreCompiledOnce(t *testing.T) {
	twoPlanners(t, func(p *planners) {
		for n := 1; n <= 20; n++ {
			p.register(beat(fmt.Sprint("e", n), "v1", "eu"))
			time.Sleep(2 * time.Second)
			if p.compiles() != n {
				p.tb.Fatalf("%d compiles after %d changes", p.compiles(), n)
			}
		}
		if !strings.HasPrefix(p.plan().Note, "accepted") {
			p.tb.Errorf("the plan is %v", p.plan())
		}
		time.Sleep(time.Hour)
		if n := p.compiles(); n != 20 {
			p.tb.Errorf("%d compiles of what did not change", n-20)
		}
	})
}

// A strategy that asks to be asked again is asked once for all hosts, too.
func TestRefreshIsAskedForOnce(t *testing.T) {
	twoPlanners(t, func(p *planners) {
		for _, c := range p.compilers {
			c.refresh = 10 * time.Second
		}
		p.register(beat("e", "v1", "eu"))
		time.Sleep(101 * time.Second)
		if n := p.compiles(); n < 9 || n > 11 {
			p.tb.Errorf("%d compiles in 101 s, one each 10 s is asked for", n)
		}
	})
}

// What a host has claimed and does not finish another one does, and the answer that
// comes after that counts for nothing.
func TestClaimOfAHostThatHangs(t *testing.T) {
	twoPlanners(t, func(p *planners) {
		hang := make(chan struct{})
		for _, c := range p.compilers {
			c.hang = hang
		}
		p.register(beat("e", "v1", "eu"))
		time.Sleep(2 * time.Second)
		if p.compiles() != 1 {
			p.tb.Fatalf("%d compiles while one is under way", p.compiles())
		}
		stuck := p.compilers[0]
		if stuck.count() == 0 {
			stuck = p.compilers[1]
		}
		for _, c := range p.compilers {
			c.mu.Lock()
			c.hang = nil
			c.mu.Unlock()
		}
		time.Sleep(10 * time.Second)
		plan := p.plan()
		if p.compiles() != 2 || stuck.count() != 1 || plan.Plan.GetGeneration() != 1 {
			p.tb.Fatalf("%d compiles, %d of them by the host that hangs: the plan is %v", p.compiles(), stuck.count(), plan)
		}
		version := p.version()
		close(hang)
		time.Sleep(10 * time.Second)
		if p.compiles() != 2 || p.version() != version {
			p.tb.Errorf("%d compiles, and version %d after %d, once the host that hung goes on", p.compiles(), p.version(), version)
		}
	})
}

// A host whose plugin is broken does not keep another one from a plan.
func TestBrokenPluginOnOneHost(t *testing.T) {
	twoPlanners(t, func(p *planners) {
		p.compilers[0].set(fmt.Errorf("broken"))
		for n := range 10 {
			p.register(beat(fmt.Sprint("e", n), "v1", "eu"))
			time.Sleep(5 * time.Second)
			if !strings.HasPrefix(p.plan().Note, "accepted") {
				p.tb.Fatalf("the plan is %v 5 s after a change", p.plan())
			}
		}
	})
}

// The next life of a host compiles once again what it compiled before: its plugin may
// be another one. It does not wait for what it had claimed itself.
func TestRestartCompilesAgain(t *testing.T) {
	twoPlanners(t, func(p *planners) {
		p.stop[1]()
		p.register(beat("e", "v1", "eu"))
		time.Sleep(2 * time.Second)
		p.start(1)
		time.Sleep(2 * time.Second)
		if p.compilers[0].count() != 1 || p.compilers[1].count() != 0 {
			p.tb.Fatalf("a start beside the host that compiled makes %d compiles", p.compilers[1].count())
		}
		p.stop[0]()
		p.start(0)
		time.Sleep(2 * time.Second)
		if n := p.compilers[0].count(); n != 2 {
			p.tb.Errorf("%d compiles after a restart, want one more", n-1)
		}
	})
}
